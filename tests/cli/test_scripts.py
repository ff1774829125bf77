"""Commands that run a script: what is theirs, and what is the script's."""

import re

import pytest

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
def test_options_after_the_script_are_not_lost_without_a_word(command, words, named, tmp_path, monkeypatch, capsys):
    """They go to the script, as with torchrun; a warning says so, unless a -- or the script's text shows it is meant."""
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
