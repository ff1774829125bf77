"""What a start costs, counted: modules that are loaded before the first rank starts, processes of a launch."""

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rankwise.launch.functions.service import receive, send

EARLY = """
import os, sys
def note(event, args):
    if event == "subprocess.Popen":
        os.write(1, " ".join(sys.modules).encode())
        raise SystemExit(0)  # what was made for the ranks is removed
sys.addaudithook(note)
"""
RUN = "sys.argv = ['rankwise', 'run', '--nproc', '2', 'script.py']\nfrom rankwise.cli import main\nmain()"
SERVICE = "from rankwise.launch.functions.service import main\nmain(int(sys.argv[1]))"
LATE = ("typer", "click", "rich", "pydantic", "numpy", "torch", "hashlib", "asyncio", "logging", "multiprocessing")
OURS = ("failures.verdict", "failures.outcome", "failures.report", "functions.pickled_call")
OURS += ("local.failure_detector", "elastic.nodes", "slurm.allocation")
REQUEST = {"options": {"num_ranks": 2}, "tee": "auto", "store_file": None}
REQUEST |= {"target": {"main": "", "function": "", "path": []}}
COUNT = """
import os, pathlib, time

def marked(entry):
    try:
        return os.environ["MARK"].encode() in (entry / "environ").read_bytes()
    except OSError:
        return False

def count(rank):
    pathlib.Path(f"here-{rank}").touch()
    while not all(os.path.exists(f"here-{other}") for other in (0, 1)):
        time.sleep(0.01)
    number = sum(marked(entry) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit())
    pathlib.Path(f"counted-{rank}").touch()
    while not all(os.path.exists(f"counted-{other}") for other in (0, 1)):
        time.sleep(0.01)
    return number
"""
ALONE = COUNT + "print(count(int(os.environ['RANK'])))"
CALLED = (
    COUNT
    + """
def each():
    return count(int(os.environ["RANK"]))

if __name__ == "__main__":
    import rankwise
    print(*rankwise.run(each, num_ranks=2))
"""
)


def leave_folder(elsewhere):
    """Leave a folder in memory as a killed launch does."""
    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else elsewhere) / f"rankwise-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    (folder / "owner").touch()
    return folder


@pytest.mark.parametrize(("code", "most"), [(RUN, 160), (SERVICE, 165)], ids=["run", "service"])
def test_little_is_loaded_before_the_first_rank_starts(launcher, code, most):
    """The ranks wait for nothing that only an end, a mistake, help or another backend needs."""
    launcher.script("")
    stale = leave_folder(launcher.folder)
    near, far = socket.socketpair()
    env = {name: value for name, value in launcher.env.items() if not name.startswith(("PET_", "SLURM_", "COV_"))}
    command = [sys.executable, "-P", "-c", EARLY + code, str(far.fileno())]
    sinks = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with near, subprocess.Popen(command, cwd=launcher.folder, pass_fds=(far.fileno(),), env=env, **sinks) as process:
        far.close()
        send(near, json.dumps(REQUEST).encode())
        send(near, b"no call is made")
        out, err = process.communicate(timeout=240)
    shutil.rmtree(stale, ignore_errors=True)  # the launch ended before it swept; another one may have
    loaded = set(out.split())
    assert "rankwise.launch.local.process" in loaded, err
    assert not loaded.intersection(LATE)
    ours = [f"rankwise.launch.{name}" for name in OURS]
    assert all(map(importlib.util.find_spec, ours))
    assert not loaded.intersection(ours)
    assert len(loaded) <= most


@pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
def test_a_launch_is_few_processes(launcher):
    """Two ranks with a guard each, and one supervisor; under a function, its caller too."""
    stale = leave_folder(launcher.folder)
    done = launcher.run("--nproc", "2", "--tee", "all", launcher.script(ALONE), env={"MARK": uuid.uuid4().hex})
    # in one line, or in two where one rank speaks much later than the other
    assert ({line.split()[-1] for line in done.stdout.splitlines()}, done.stderr) == ({"5"}, "")
    assert stale.parent == launcher.folder or not stale.exists(), "swept while the ranks ran"
    for name in ("here", "counted"):
        for rank in (0, 1):
            (launcher.folder / f"{name}-{rank}").unlink()
    env = {**launcher.env, "MARK": uuid.uuid4().hex}
    command = [sys.executable, launcher.script(CALLED)]
    told = subprocess.run(
        command, cwd=launcher.folder, env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert told.stdout == "6 6\n"


def test_a_line_carries_whole_messages():
    """Messages of any length arrive as they were sent, from either end, and a closed end is told."""
    near, far = socket.socketpair()
    big = bytes(range(256)) * 20_000
    sender = f"""if True:
        import socket
        from rankwise.launch.functions.service import receive, send
        far = socket.socket(fileno={far.fileno()})
        send(far, b"")
        send(far, receive(far)[::-1])
    """
    with near, subprocess.Popen([sys.executable, "-c", sender], pass_fds=(far.fileno(),)):
        far.close()
        assert receive(near) == b""
        send(near, big)
        assert receive(near) == big[::-1]
        with pytest.raises((EOFError, ConnectionError)):
            receive(near)
        with pytest.raises(BrokenPipeError):
            send(near, big)
