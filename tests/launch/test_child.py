"""A target finds itself as if it had been started alone."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

LOOK = """
    import json, os, sys
    import helper
    class Mine: pass
    import pickle
    pickle.loads(pickle.dumps(Mine()))
    print(json.dumps([sys.argv, sys.path[0], __name__, __file__, helper.VALUE, sys.modules["__main__"].Mine is Mine]))
"""


@pytest.fixture
def project(launcher):
    folder = launcher.folder / "project"
    folder.mkdir()
    launcher.script("VALUE = 5\ndef main():\n    import sys\n    print('main', sys.argv)\n", "project/helper.py")
    launcher.script(LOOK, "project/look.py")
    return launcher


def test_a_script_sees_what_python_gives_it(project):
    """argv, path, name, file and pickling are those of `python script.py args`."""
    ours = project.run("--nproc", 1, "project/look.py", "-a", "--nproc", "7", "--help")
    assert ours.returncode == 0, ours.stderr
    plain = [sys.executable, "project/look.py", "-a", "--nproc", "7", "--help"]
    theirs = subprocess.run(plain, cwd=project.folder, capture_output=True, text=True, check=True)
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)


def test_a_module_sees_what_python_gives_it(project):
    """`-m package.module args` is `python -m package.module args`."""
    project.script(LOOK.replace("import helper", "from project import helper"), "project/look.py")
    ours = project.run("--nproc", 1, "-m", "project.look", "a")
    assert ours.returncode == 0, ours.stderr
    plain = [sys.executable, "-m", "project.look", "a"]
    theirs = subprocess.run(plain, cwd=project.folder, capture_output=True, text=True, check=True)
    assert json.loads(ours.stdout)[1:] == json.loads(theirs.stdout)[1:]


def test_a_function_is_called(project):
    """`module:function` imports from the current folder and calls; a value it returns is not an exit code."""
    done = project.run("--nproc", 1, "project.helper:main", "x")
    assert (done.returncode, done.stdout) == (0, "main ['project.helper:main', 'x']\n")


def test_a_function_that_is_missing(project):
    """The error is the rank's, once, without the frames of the launcher that looked for it."""
    done = project.run("--nproc", 2, "project.helper:nothing")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\nAttributeError: module 'project.helper' has no attribute 'nothing'\n") == 1
    # the other one fails, too, unless it was stopped before
    assert "failed in the same way" in done.stderr or "stopped by rankwise (SIGTERM)" in done.stderr


def test_a_module_beside_the_launch_does_not_shadow(project):
    """A file of the current folder with a standard name (signal.py) does not break the start of a rank."""
    project.script("raise SystemError('the wrong one')", "signal.py")
    project.script("print('fine')", "project/fine.py")
    done = project.run("--nproc", 1, "project/fine.py")
    assert done.stdout == "fine\n", done.stderr


def test_atexit_sees_the_program(project):
    """Functions registered with atexit find the program's globals at the end."""
    text = "import atexit, pickle\nVALUE = 3\nclass Mine: pass\n"
    text += "atexit.register(lambda: print('bye', VALUE, type(pickle.loads(pickle.dumps(Mine()))).__name__))\n"
    script = project.script(text)
    for words in ([script], ["-m", "script"]):
        assert project.run("--nproc", 1, *words).stdout == "bye 3 Mine\n"


def test_a_collective_is_the_last_call(launcher):
    """No group is destroyed, the tensor is let go of while the program ends: no rank aborts, exit handlers have run.

    Without the wait for gloo's threads about every second such launch ends with SIGABRT.
    """
    launcher.script("""
        import atexit, sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        atexit.register(print, "left", flush=True)
        kept = open(f"kept-{dist.get_rank()}", "w")  # closed by nobody
        kept.write("all of it")
        sys.setswitchinterval(100)  # a thread that wants the interpreter gets it only when it is let go of
        dist.all_reduce(torch.zeros(1 << 20))
    """)
    done = launcher.run("--nproc", 3, "--tee", "all", "--no-merge", "script.py", env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("left") == 3
    assert [(launcher.folder / f"kept-{rank}").read_text() for rank in range(3)] == ["all of it"] * 3


def test_an_archive_of_any_name(project):
    """An application in one file (zipapp, pex) needs no suffix, as under `python`."""
    with zipfile.ZipFile(project.folder / "tool", "w") as archive:
        archive.writestr("__main__.py", "import sys, inner\nprint('main', inner.VALUE, sys.argv)\n")
        archive.writestr("inner.py", "VALUE = 7\n")
    done = project.run("--nproc", 1, "tool", "-a")
    assert (done.returncode, done.stdout) == (0, "main 7 ['tool', '-a']\n"), done.stderr


HOOK = """
    import pathlib, sys, traceback
    def hook(kind, error, trace):
        pathlib.Path("told").write_text("".join(traceback.format_exception(error)))
        traceback.print_exception(error)
    sys.excepthook = hook
    raise ValueError("the cause")
"""
REPLACED = """
import sys
class Stream:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        return self.stream.write(text.replace("cause", "CAUSE"))
    def flush(self):
        self.stream.flush()
sys.stdout = Stream(sys.stdout)
"""


def test_what_a_program_and_its_site_have_set(project):
    """The program's `sys.excepthook` is called, but the traceback is printed once; stdout may be any object."""
    project.script(HOOK, "hook.py")
    (project.folder / "site").mkdir()
    project.script(REPLACED, "site/sitecustomize.py")
    done = project.run(
        "--nproc", 1, "hook.py", env={"PYTHONPATH": f"{project.folder}/site:{os.environ.get('PYTHONPATH', '')}"}
    )
    assert done.returncode == 1
    assert done.stderr.count("\nValueError: the cause\n") == 1
    assert "ValueError: the cause\n" in (project.folder / "told").read_text()
