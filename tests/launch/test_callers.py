"""Who calls and with what: programs of any kind, many arguments, processes that ranks leave behind."""

import os
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rankwise


def test_a_process_that_a_rank_has_left_behind_holds_nobody_up(capsys):
    """A daemon of a single rank keeps its stdout, which is the pipe to a replaced sys.stdout."""

    def leave():
        print("left")
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    (pid,) = rankwise.run(leave, num_ranks=1)
    os.kill(pid, signal.SIGKILL)
    assert capsys.readouterr().out == "left\n"


APPLICATION = """
    import cProfile, os, sys
    import rankwise

    class Value:
        rank = 0

    # who loads it: on the ranks they do, unless it is sent by value, for a profiler that hides the program
    LOADED = None if "cProfile" in sys.orig_argv else os.getpid()

    def make():
        value = Value()
        value.rank = int(os.environ["RANK"]) if LOADED in (None, os.getpid()) else None
        print("made", flush=True)
        return value

    if __name__ == "__main__":
        values = rankwise.run(make, num_ranks=2, tee="all")
        with open("values", "w") as file:
            print([value.rank for value in values], file=file)
"""


# as cProfile does from Python 3.13.1 on
PROFILER = """
    import importlib.machinery, sys, types
    del sys.argv[0]
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__spec__ = importlib.machinery.ModuleSpec("__main__", None, origin=sys.argv[0])
    exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), module.__dict__)
"""
CLOSED = {"closed": " <&- >&-", "all closed": " <&- >&- 2>&-"}


@pytest.mark.parametrize("start", ["folder", "archive", "-m cProfile -o profile", "profiler", *CLOSED])
def test_functions_of_a_main_program_of_any_kind(launcher, start):
    """A folder, an archive, a script that a profiler runs, a script whose standard streams are closed."""
    script = Path(launcher.script(APPLICATION))
    words, target = [], script
    if start == "folder":
        target = launcher.folder / "app"
        target.mkdir()
        script.rename(target / "__main__.py")
    elif start == "archive":
        target = launcher.folder / "app.pyz"
        with zipfile.ZipFile(target, "w") as archive:
            archive.write(script, "__main__.py")
    elif start == "profiler":
        words = [launcher.script(PROFILER, name="profiler.py")]
    elif start not in CLOSED:
        words = start.split()
    command = shlex.join([sys.executable, *words, str(target)]) + CLOSED.get(start, "")
    words = ["sh", "-c", f"exec {command}"]
    done = subprocess.run(words, cwd=launcher.folder, stderr=subprocess.PIPE, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert (launcher.folder / "values").read_text() == "[0, 1]\n"


VENDORED = """
    import os, sys
    sys.path[:0] = {added}
    import rankwise

    def find():
        import {module} as first
        return os.path.abspath(rankwise.__file__), first.__name__

    if __name__ == "__main__":
        os.chdir("elsewhere")
        print(rankwise.run(find, num_ranks=2))
"""


@pytest.mark.parametrize(
    ("start", "module"),
    [("relative", "torch"), ("added", "json"), pytest.param("added", "torch", marks=pytest.mark.slow)],
)
def test_a_package_that_a_fresh_interpreter_does_not_find(launcher, start, module):
    """By a relative PYTHONPATH before a change of the working directory, or by sys.path: ranks load the same one."""
    vendor = launcher.folder / "vendor"
    vendor.mkdir()
    (vendor / "rankwise").symlink_to(Path(rankwise.__file__).parent)
    (launcher.folder / "elsewhere").mkdir()
    script = launcher.script(VENDORED.format(added=[str(vendor)] if start == "added" else [], module=module))
    env = {**os.environ, **({"PYTHONPATH": "vendor"} if start == "relative" else {})}
    done = subprocess.run(
        [sys.executable, script], env=env, cwd=launcher.folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.stdout == f"{[(str(vendor / 'rankwise' / '__init__.py'), module)] * 2}\n", done.stderr


def test_hidden_output_is_said_in_the_words_of_the_call(capfd):
    """The command has an option --tee, the function an argument."""
    rankwise.run(print, "said", num_ranks=2)
    said = capfd.readouterr()
    assert said.out == "said\n"
    assert said.err == 'rankwise: not shown: 1 lines on stdout of rank 1 (tee="all" shows them)\n'


def test_a_rank_that_closes_all_that_it_inherited(tmp_path):
    """As a daemon does: the value arrives, and no report is written into a file of the rank's own."""
    own = tmp_path / "own"

    def close():
        os.closerange(3, 100)
        own.write_text("")
        kept = [own.open("r+") for _ in range(20)]
        sys.modules["kept"] = kept  # until the process ends
        return len(kept)

    assert rankwise.run(close, num_ranks=1) == [20]
    assert own.read_text() == ""


def test_more_arguments_than_one_message_holds(launcher):
    """A shell's `*` names thousands of files: the ranks start one by one, and at once."""
    script = launcher.script("import torch\nimport sys\nprint(len(sys.argv))\n")
    done = launcher.run("--nproc", 2, script, *(f"a-file-with-a-long-name-{number:05}" for number in range(12_000)))
    assert (done.returncode, done.stdout) == (0, "12001\n"), done.stderr
