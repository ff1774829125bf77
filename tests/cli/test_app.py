"""The command as a whole."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise
from rankwise.errors import ConfigError

PROBE = """
import sys, time
start = time.process_time()
{what}
sys.stderr.write(f"{{time.process_time():.3f}} {{sorted(sys.modules)}}")
"""
HELP = """
from rankwise.cli import main
sys.argv = ["rankwise", "--help"]
try:
    main()
except SystemExit as done:
    assert done.code == 0
"""


def rankwise_command(*words):
    return subprocess.run(
        [sys.executable, "-m", "rankwise", *words], capture_output=True, text=True, timeout=240, check=False
    )


def test_version():
    """`--version` prints the package's version."""
    done = rankwise_command("--version")
    assert (done.returncode, done.stdout) == (0, f"rankwise {rankwise.__version__}\n")


def test_help_names_the_commands():
    """`--help` lists every command with one line."""
    done = rankwise_command("--help")
    assert done.returncode == 0
    assert "run" in done.stdout
    assert "N ranks of this machine" in done.stdout


def probed(what):
    """CPU seconds and modules of a fresh process that does something."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(what=what)], capture_output=True, text=True, timeout=240, check=True
    )
    seconds, _, modules = done.stderr.partition(" ")
    return float(seconds), set(ast.literal_eval(modules))


@pytest.mark.parametrize(("what", "most"), [("import rankwise", 60), (HELP, 500)])
def test_start_is_light(what, most):
    """`import rankwise` and `rankwise --help` load few modules, and no torch, zarr, numba or NumPy."""
    _, nothing = probed("")
    _, modules = probed(what)
    assert not {"torch", "zarr", "numba", "numpy"} & modules
    assert len(modules - nothing) <= most


@pytest.mark.slow
@pytest.mark.parametrize("what", ["import rankwise", HELP])
def test_start_is_quick(what):
    """Each takes under 0.3 s of CPU."""
    assert min(probed(what)[0] for _ in range(5)) < 0.3


def test_an_error_is_one_message():
    """An error of rankwise reaches the user without a traceback, with exit code 2."""
    done = rankwise_command("run", "no_such_script.py")
    assert done.returncode == 2
    assert done.stderr.startswith("rankwise: no script 'no_such_script.py'")
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_refused_with_a_near_one():
    """A misspelt option names the right one and runs nothing."""
    done = rankwise_command("run", "--nprc", "2", "x.py")
    assert done.returncode == 2
    assert "--nproc" in done.stderr


def test_config_errors_are_value_errors():
    """What the command prints is what the library raises."""
    assert issubclass(ConfigError, ValueError)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "words", [["--version"], ["explain", "--list"], ["run", "--dry-run", "--nproc", "2", __file__]]
)
def test_a_full_disk_behind_stdout_is_one_message(words):
    """`rankwise ... > file` on a full disk exits with 2 and says why, without a traceback."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rankwise", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "rankwise: the output cannot be written: No space left on device\n"


def test_closed_streams_are_like_dev_null(tmp_path):
    """`<&- >&-`: Python has no sys.stdin and sys.stdout then."""
    (tmp_path / "fine.py").write_text("x = 1\n")
    command = f"exec {sys.executable} -m rankwise lint fine.py <&- >&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    (tmp_path / "said.py").write_text(
        "import sys\nprint('nothing')\nopen('said', 'w').write(str(sys.stdout.isatty()))\n"
    )
    command = f"exec {sys.executable} -m rankwise run --nproc 1 said.py <&- >&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "said").read_text() == "False"


def test_a_removed_working_directory_is_named(tmp_path):
    """It is the reason why no file is found."""
    command = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m rankwise run --nproc 2 train.py"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "rankwise: the working directory has been removed: change to one that exists\n"


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_stdout_in_ascii_shows_the_rest(tmp_path, env):
    """What stdout cannot encode is printed as a question mark, and the report goes on."""
    (tmp_path / "job.log").write_text("RuntimeError: CUDA out of memory in m\u00e9lange. Tried to allocate 2.00 GiB.\n")
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "explain", "job.log"],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"m?lange" in done.stdout


def test_the_known_messages_as_json():
    """`explain --list --json` is JSON, with every message that the list names."""
    listed, told = (rankwise_command("explain", "--list", *more).stdout for more in ((), ("--json",)))
    assert [each["slug"] for each in json.loads(told)["messages"]] == [line.split()[0] for line in listed.splitlines()]


def test_help_without_docstrings():
    """`python -OO` drops docstrings; the descriptions stay."""
    for words, description in (
        (["rows"], "Write shuffled rows to a new"),
        (["doctor"], "Check variables, host, devices"),
    ):
        command = [sys.executable, "-OO", "-m", "rankwise", *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert description in done.stdout


INTERRUPTED = """
import sys
from rankwise.cli import app, main

def interrupted(prog_name):  # Python remembers an interrupt in an `exec` of text, as by dataclasses, beyond `except`
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")

app.app = interrupted
sys.argv = ["rankwise", "env"]
main()
"""


def test_an_interrupt_ends_with_130(tmp_path):
    """Ctrl-C is an exit code, wherever it meets the program, also under `python -m`."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "checkpoint show none",
        "data audit none --crop 2",
        "data bench none --crop 2",
        "doctor --only nothing",
        "explain none.log",
        "profile none.py",
        "rows info none",
        "scaling none.py",
        "verify none.py",
        "watch none",
    ],
)
def test_errors_and_json(command, words):
    """With --json, stdout holds JSON or nothing: the reason is on stderr, as without, and the exit code is 2."""
    name, *others = words.split()
    first = [name, others.pop(0)] if name in {"checkpoint", "data", "rows"} else [name]
    code, out, said = command(*first, "--json", *others)
    assert (code, out) == (2, "")
    assert said.startswith("rankwise: ")
    assert command(*first, *others)[2] == said


@pytest.mark.parametrize("name", ["profile", "scaling"])
def test_a_run_directory_that_is_a_file(command, name, tmp_path):
    """It is named as such, with the option that chooses another."""
    file, script = tmp_path / "file", tmp_path / "script.py"
    file.touch()
    script.touch()
    for place in (file, file / "below"):
        said = f"rankwise: the run directory must be a folder, but {place} is, or lies below, a file: choose another"
        assert command(name, "--run-dir", place, script) == (2, "", f"{said} with --run-dir\n")
