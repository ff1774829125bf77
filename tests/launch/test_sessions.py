"""What is killed with a rank, and what may still tidy up after it."""

import subprocess
import sys
import time

from rankwise.launch.local.sessions import end_session, end_sessions

# the leader of a session forks a helper, which calls exec after a while, and ends at once
LEADER = """
import os, sys, time
if os.fork() == 0:
    time.sleep(float(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-S", "-c",
        "import pathlib, sys, time; time.sleep(float(sys.argv[2])); pathlib.Path(sys.argv[3]).touch()", *sys.argv[2:]])
"""


def run_session(*arguments):
    """Start and end a session; return how many seconds that took."""
    leader = subprocess.Popen([sys.executable, "-S", "-c", LEADER, *map(str, arguments)], start_new_session=True)
    leader.wait()
    began = time.monotonic()
    end_session(leader.pid)
    end_sessions({leader.pid})
    return time.monotonic() - began


def test_a_resource_tracker_that_was_just_forked_tidies_up(tmp_path):
    """A rank may die between the fork and the exec of its tracker: without it, its shared memory would stay."""
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
