"""Commands that run a script: what is theirs, and what is the script's."""

import re

import pytest

from rankwise._process.lock import FileLock
from rankwise.cli.app import app
from rankwise.diagnose.profile import runs
from rankwise.errors import ConfigError, RunDirError


@pytest.mark.parametrize("command", ["verify", "scaling", "profile"])
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train.py", "--json"], "--json"),
        (["train.py", "--lr", "1", "--steps=5", "--help", "--stepsize", "3"], "--help, --steps"),
        (["train.py", "--own", "1"], ""),
        (["--", "train.py", "--json"], ""),
        (["train.py", "--", "--json"], ""),
        (["own.py", "--json"], ""),
    ],
)
def test_options_after_the_script_are_said(command, words, named, *, tmp_path, monkeypatch, capsys):
    """They go to the script, as with torchrun; a warning says so, unless a -- or the script's text shows intent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("'--stepsize --jsonl'")
    (tmp_path / "own.py").write_text("parser.add_argument('--json')")
    wrong = ["--sweep", "wrong=x"] if command == "profile" else ["--ranks", "x"]
    with pytest.raises(ConfigError, match=wrong[0]):  # before anything runs
        app([command, *wrong, *words], prog_name="rankwise", standalone_mode=False)
    said = capsys.readouterr().err
    if not named:
        assert not said
        return
    first = named.partition(",")[0]
    assert re.fullmatch(
        rf"rankwise: warning: {named} after train.py is an argument .* rankwise {command} come before it\. "
        rf".* rankwise {command} -- train.py {first} \.\.\.\n",
        said,
    )


@pytest.mark.parametrize("command", ["profile", "scaling"])
def test_a_second_measurement_into_one_folder_is_refused(command, tmp_path, monkeypatch):
    """Before anything runs; the last to end would replace the result of the other."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "runs/train").mkdir(parents=True)
    lock = FileLock(tmp_path / f"runs/train/{command}.lock", what="")
    lock.acquire(wait_s=0)
    with pytest.raises(RunDirError, match=f"^the {command} in runs/train is already in use"):
        app([command, "train.py"], prog_name="rankwise", standalone_mode=False)
    lock.release()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["profile", "--sweep", "buckets=1,2"], "must change one of"),
        (["profile", "--sweep", "bucket_mb=1,nan"], "bucket_mb must be"),
        (["profile", "--sweep", "bucket_mb=1,2", "--repeats", "1"], "repeats must be"),
        (["scaling", "--min-efficiency", "90"], "range|less than"),
        (["verify", "--tolerance", "nan"], "range|greater than"),
    ],
)
def test_numbers_are_checked_before_anything_runs(words, named, tmp_path, monkeypatch):
    """A measurement of minutes does not end with the name of a wrong option."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(runs, "run_observed", None)
    with pytest.raises(Exception, match=named) as raised:
        app([*words, "train.py"], prog_name="rankwise", standalone_mode=False)
    assert isinstance(raised.value, ConfigError) or raised.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lint", ""], "a folder or file"),
        (["report", ""], "a folder or file"),
        (["lint", "--select", "", "x.py"], "--select must name a rule"),
        (["lint", "--ignore", ",", "x.py"], "--ignore must name a rule"),
        (["doctor", "--only", ""], "--only must name a section"),
        (["doctor", "--skip", " "], "--skip must name a section"),
        (["lint", "--baseline", "", "x.py"], "a folder or file"),
        (["lint", "--write-baseline", "", "x.py"], "a folder or file"),
        (["report", "--lint", "", "run"], "a folder or file"),
        (["report", "run", "-o", ""], "a folder or file"),
        (["checkpoint", "show", ""], "a folder or file"),
        (["checkpoint", "export", "run", ""], "a folder or file"),
        (["rows", "info", ""], "a folder or file"),
        (["rows", "verify", ""], "a folder or file"),
        (["rows", "write", "", "a.h5ad"], "a folder or file"),
        (["rows", "write", "a.zarr", ""], "a folder or file"),
        (["data", "audit", "", "--crop", "4"], "a folder or file"),
        (["data", "index", "", "-o", "x"], "a folder or file"),
        (["data", "index", ".", "-o", ""], "a folder or file"),
        (["verify", "--out", "", "x.py"], "a folder or file"),
        (["run", "--token-file", "", "x.py"], "a folder or file"),
        (["explain", ""], "an empty name"),
        (["profile", ""], "no script or folder ''"),
    ],
)
def test_empty_names_are_refused(words, named, tmp_path, monkeypatch):
    """An unset variable in quotes neither means the working directory, nor nothing, nor everything."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match=named) as raised:
        app(words, prog_name="rankwise", standalone_mode=False)
    assert isinstance(raised.value, ConfigError) or raised.value.exit_code == 2
