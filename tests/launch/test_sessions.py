"""What is killed with a rank, and what may still tidy up after it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankwise.launch.local import sessions
from rankwise.launch.local.sessions import end_session, end_sessions

# the leader of a session forks a helper, which calls exec after a while, and ends at once
LEADER = """
import os, sys, time
if os.fork() == 0:
    time.sleep(float(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-S", "-c",
        "import pathlib, sys, time; time.sleep(float(sys.argv[2])); pathlib.Path(sys.argv[3]).touch()", *sys.argv[2:]])
"""

# the leader starts a child, tells its number, and waits
SLEEPS = """
import os, subprocess, sys, time
print(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"]).pid, flush=True)
time.sleep(100)
"""

# the leader keeps a guard, tells its number, and waits
GUARDED = """
import os, sys, time
from pathlib import Path
from rankwise.launch.child import keep_guard
keep_guard(int(sys.argv[1]), [])
for entry in Path("/proc").iterdir():
    if entry.name.isdigit() and int(entry.name) != os.getpid():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # a process of somebody else has ended meanwhile
            continue
        if int(fields[3]) == os.getpid():
            print(entry.name, flush=True)
time.sleep(100)
"""


def run_session(*arguments):
    """Start and end a session; return how many seconds that took."""
    leader = subprocess.Popen([sys.executable, "-S", "-c", LEADER, *map(str, arguments)], start_new_session=True)
    leader.wait()
    began = time.monotonic()
    end_session(leader.pid)
    end_sessions({leader.pid})
    return time.monotonic() - began


def test_a_resource_tracker_that_was_just_forked_tidies_up(tmp_path, monkeypatch):
    """A rank may die between the fork and the exec of its tracker: without it, its shared memory would stay."""
    monkeypatch.setattr(sessions, "_YOUNG_S", 60.0)  # however late a busy machine lets it call exec
    run_session(0.3, "multiprocessing.resource_tracker", 0.1, tmp_path / "tidied")
    assert (tmp_path / "tidied").exists()


def test_another_process_is_killed(tmp_path):
    """A forked process is known by what it becomes: an ordinary one is killed, and nobody waits for it."""
    run_session(0.0, "helper", 30, tmp_path / "lived")
    assert not (tmp_path / "lived").exists()


def test_a_process_that_never_calls_exec_is_waited_for_only_while_young(tmp_path):
    """A loader worker that was forked just before the rank died."""
    assert run_session(60, "helper", 0, tmp_path / "lived") < 30
    assert not (tmp_path / "lived").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="command lines are read in /proc")
def test_a_process_in_the_middle_of_exec_is_spared(tmp_path, monkeypatch, wait_until):
    """It has no command line yet, while the parent that used vfork goes on, and may die: it may be the tracker."""
    leader = subprocess.Popen([sys.executable, "-S", "-c", SLEEPS], start_new_session=True, stdout=subprocess.PIPE)
    child = int(leader.stdout.readline())
    folder = tmp_path / str(child)
    folder.mkdir()
    (folder / "stat").write_bytes(Path(f"/proc/{child}/stat").read_bytes())
    command = folder / "cmdline"
    command.write_bytes(b"")
    monkeypatch.setattr(sessions, "_PROC", tmp_path)  # what the kernel shows only for a moment
    try:
        end_session(leader.pid)
        time.sleep(0.3)
        assert is_running(child)
        threading.Timer(0.3, command.write_bytes, [b"python\0-c\0helper\0"]).start()
        end_sessions({leader.pid})
        wait_until(lambda: not is_running(child))
    finally:
        monkeypatch.undo()
        end_session(leader.pid)
        leader.kill()
        leader.wait()
        leader.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process group is killed as a whole")
def test_nobody_waits_for_a_guard(wait_until):
    """It never calls exec, and every rank has one: each run would last a second longer."""
    near, far = os.pipe()  # while one end is held here, the guard does not end by itself
    command = [sys.executable, "-c", GUARDED, str(far)]
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, text=True, pass_fds=(far,)
    ) as leader:
        os.close(far)
        guard = int(leader.stdout.readline())
        assert is_running(guard)
        end_session(leader.pid)  # which leaves alone what `end_sessions` would wait for
        wait_until(lambda: not is_running(guard))
    os.close(near)


def is_running(pid):
    """Whether a process is there, and has not ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in {"Z", "X"}
