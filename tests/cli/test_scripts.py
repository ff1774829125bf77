"""Commands that run a script: what is theirs, and what is the script's."""

import re
import subprocess
import sys

import pytest

from rankwise._process.lock import FileLock
from rankwise.cli.app import app
from rankwise.errors import ConfigError


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


def test_a_second_profile_into_one_folder_is_refused(tmp_path):
    """It is named who records there; the last to end would replace the profile of the other."""
    (tmp_path / "train.py").touch()
    (tmp_path / "runs/train").mkdir(parents=True)
    lock = FileLock(tmp_path / "runs/train/profile.lock", what="")
    lock.acquire(wait_s=0)
    command = [sys.executable, "-m", "rankwise", "profile", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    lock.release()
    assert done.returncode == 2
    assert done.stderr.startswith("rankwise: the profile in runs/train is in use by process ")
    assert "--run-dir" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lint", ""], "a folder or file"),
        (["report", ""], "a folder or file"),
        (["lint", "--select", "", "x.py"], "--select must name a rule"),
        (["lint", "--ignore", ",", "x.py"], "--ignore must name a rule"),
        (["doctor", "--only", ""], "--only must name a section"),
        (["doctor", "--skip", " "], "--skip must name a section"),
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
