"""What `rankwise run` reads by itself it reads as typer does; options from PET_* variables."""

import inspect
import os
import random
import subprocess
import sys

import pytest

from rankwise.cli import options, run
from rankwise.cli.app import app
from rankwise.cli.diagnosis import doctor_command
from rankwise.cli.options import RunOptions, announced_options, read_plainly
from rankwise.errors import ConfigError

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
    return {name: list(v) if isinstance(v := getattr(said, name), tuple) else v for name in RunOptions.__annotations__}


def line(chance):
    """Return a command line of known and unknown options with good and bad values."""
    words = []
    for _ in range(chance.randrange(4)):
        name = chance.choice([*options._FLAGS, *options._VALUES, "--slurm", "--dry-run", "-x"])
        if chance.random() < 0.2:
            name = name.replace("-", "_").replace("__", "--", 1)
        option = options._VALUES.get(name.replace("_", "-"))
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
    assert defaults == {name: getattr(RunOptions, name) for name in RunOptions.__annotations__ if name != "words"}
    with pytest.raises(TypeError, match="nprok"):
        RunOptions(nprok="2")


@pytest.mark.parametrize("name", [*options._FLAGS, *options._VALUES])
def test_every_option_means_the_same(name, monkeypatch):
    """Each spelling of each option that is read without typer reaches the job as through typer."""
    words = [name, "train.py", "--its", "own"]
    if name in options._VALUES:
        words.insert(1, GOOD.get(options._VALUES[name][0], ["7"])[0])
    plainly = read_plainly(words, {})
    assert plainly is not None
    assert spoken(plainly) == typers(words, monkeypatch) != spoken(RunOptions())


def test_what_is_read_is_what_typer_reads(monkeypatch):
    """Of any command line: either typer has the say, or it would have said the same."""
    chance = random.Random(5)
    lines = [line(chance) for _ in range(150)]
    plain = [(words, spoken(said)) for words in lines if (said := read_plainly(words, {})) is not None]
    assert 35 < len(plain) < 120  # both kinds are among them
    for words, said in plain:
        assert said == typers(words, monkeypatch), words


def test_who_announces_options_gets_typer():
    """Variables of Kubeflow are typer's business."""
    assert read_plainly(["train.py"], {"PET_MAX_RESTARTS": " "}) is not None
    assert read_plainly(["train.py"], {"PET_MAX_RESTARTS": "1"}) is None


def test_the_variables_of_kubeflows_pods():
    """A TrainJob's and an elastic PyTorchJob's pods: each variable is the option that torchrun takes it for."""
    assert announced_options(
        {
            "PET_NNODES": "2",
            "PET_NODE_RANK": "1",
            "PET_NPROC_PER_NODE": "4",
            "PET_MASTER_ADDR": "a.b",
            "PET_MASTER_PORT": "29500",
        }
    ) == {"nnodes": "2", "node_rank": "1", "nproc": "4", "master_addr": "a.b", "master_port": "29500"}
    elastic = {
        "PET_NNODES": "1:4",
        "PET_RDZV_ENDPOINT": "w-0:23456",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_BACKEND": "c10d",
    }
    assert announced_options(elastic) == {"nnodes": "1:4", "rdzv_endpoint": "w-0:23456", "max_restarts": "3"}
    assert announced_options({"PET_NNODES": " "}) == {}


def test_the_command_line_goes_before(tmp_path):
    """In a pod for two ranks `rankwise run` starts two, with --nproc 1 one."""
    (tmp_path / "script.py").write_text("")
    pod = {**os.environ, "PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    for words, ranks in ([], "2"), (["--nproc", "1"], "1"):
        command = [sys.executable, "-m", "rankwise", "run", "--dry-run", *words, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, env=pod, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert f"ranks      {ranks} on this machine" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["profile", "one rank"]}, "nothing was checked: .*--script"),
        ({"only": ["network"]}, "nothing was checked: .*under a launcher"),
        ({"nccl_log": "log", "only": ["host"]}, "--nccl-log no --data, --only and --skip"),
        ({"nccl_log": "log", "data": "store"}, "--script takes no --data"),
        ({"script": "train.py", "data": "store"}, "--script takes no --data"),
    ],
)
def test_what_doctor_would_ignore_is_refused(options, message):
    """Sections that no part of `rankwise doctor` checks, and options of its other parts."""
    with pytest.raises(ConfigError, match=message):
        doctor_command(**options)
