"""What `rankwise run` reads by itself it reads as typer does."""

import inspect
import random

import pytest

from rankwise.cli import run, run_words
from rankwise.cli.app import app
from rankwise.cli.run_words import RunWords, read_plainly

TARGETS = [
    ["train.py"],
    ["train.py", "--nproc", "3", "--", "-m"],
    ["package.module", "a b", ""],
    ["-"],
    ["--", "x.py"],
    [],
]
GOOD = {
    "nproc": ["2", "auto", "cpu"],
    "binding": ["none", "core"],
    "resume": ["must"],
    "env": ["A=1", "B=x=y"],
    "stall": ["0.1", "20"],
    "nnodes": ["1"],
}
BAD = ["-1", "", "nan", "1e3", "0.05", "x", "--fresh", "2 ", "٣", "1:1"]


def typers(words, monkeypatch):
    """Return what typer makes of the words, None if it does not get as far as the start."""
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(run, "start_ranks", lambda said: seen.append(said) or 0)
        try:
            app(["run", *words], standalone_mode=False)
        except SystemExit:
            pass
        except Exception:  # noqa: BLE001  (a mistake in the words, of whatever kind)
            return None
    return spoken(seen[0]) if seen else None


def spoken(said):
    return {name: list(v) if isinstance(v := getattr(said, name), tuple) else v for name in RunWords.__annotations__}


def line(chance):
    """Return a command line of known and unknown options with good and bad values."""
    words = []
    for _ in range(chance.randrange(4)):
        name = chance.choice([*run_words._FLAGS, *run_words._VALUES, "--slurm", "--dry-run", "-x"])
        if chance.random() < 0.2:
            name = name.replace("-", "_").replace("__", "--", 1)
        option = run_words._VALUES.get(name.replace("_", "-"))
        if option is None:
            words += [name] if chance.random() < 0.9 else [f"{name}=1"]
            continue
        value = chance.choice(GOOD.get(option[0], ["7"]) if chance.random() < 0.8 else BAD)
        words += [name, value] if chance.random() < 0.7 else [f"{name}={value}"]
    return words + chance.choice(TARGETS)


def test_the_defaults_are_typers():
    """Who leaves an option out gets the same on both ways, and neither knows an option that the other does not."""
    defaults = {
        name: option.default
        for name, option in inspect.signature(run.run_command).parameters.items()
        if option.default is not inspect.Parameter.empty
    }
    assert defaults == {name: getattr(RunWords, name) for name in RunWords.__annotations__ if name != "words"}
    with pytest.raises(TypeError, match="nprok"):
        RunWords(nprok="2")


@pytest.mark.parametrize("name", [*run_words._FLAGS, *run_words._VALUES])
def test_every_option_means_the_same(name, monkeypatch):
    """Each spelling of each option that is read without typer reaches the job as through typer."""
    words = [name, "train.py", "--its", "own"]
    if name in run_words._VALUES:
        words.insert(1, GOOD.get(run_words._VALUES[name][0], ["7"])[0])
    plainly = read_plainly(words, {})
    assert plainly is not None
    assert spoken(plainly) == typers(words, monkeypatch) != spoken(RunWords())


def test_what_is_read_is_what_typer_reads(monkeypatch):
    """Of any command line: either typer has the say, or it would have said the same."""
    chance = random.Random(5)
    lines = [line(chance) for _ in range(150)]
    plain = [(words, spoken(said)) for words in lines if (said := read_plainly(words, {})) is not None]
    assert 35 < len(plain) < 120  # both kinds are among them
    for words, said in plain:
        assert said == typers(words, monkeypatch), words


def test_who_announces_options_gets_typer():
    """Variables of Kubeflow, and a shell that completes words, are typer's business."""
    assert read_plainly(["train.py"], {"PET_MAX_RESTARTS": " "}) is not None
    assert read_plainly(["train.py"], {"PET_MAX_RESTARTS": "1"}) is None
    assert read_plainly(["train.py"], {"_RANKWISE_COMPLETE": "complete_bash"}) is None
