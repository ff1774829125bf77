"""The watcher's side of vitals."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankwise import vitals
from rankwise.testing.patience import until

BEATER = """
import sys, time
from rankwise import vitals
vitals.start(sys.argv[1], 0)
step = 0
while True:
    step += 1
    vitals.beat(epoch=step, step=step, phase="p" + str(step))
"""
SLEEPER = """
import sys, time
from rankwise import vitals
vitals.start(sys.argv[1], 0)
def stuck_here():
    time.sleep(1000)
stuck_here()
"""
BUSY = """
import sys
from rankwise import vitals
vitals.start(sys.argv[1], 0)
def computes():
    while True:
        sum(range(100))
computes()
"""
GIL_HOLDER = """
import ctypes, sys
from rankwise import vitals
vitals.start(sys.argv[1], 0)
def holds_the_lock():
    while True:
        ctypes.PyDLL(None).sleep(1000)
holds_the_lock()
"""


@pytest.fixture
def start(tmp_path):
    processes = []

    def begin(program):
        processes.append(subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]))
        assert until(lambda: vitals.read(tmp_path))
        return processes[-1], tmp_path

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def test_reads_are_never_torn(start):
    """While a rank beats as fast as it can, every reading shows one beat, not parts of two."""
    process, folder = start(BEATER)
    seen = set()
    deadline = time.monotonic() + 120
    while len(seen) < 50 and time.monotonic() < deadline:
        (vital,) = vitals.read(folder)
        if vital.num_beats:
            assert (vital.epoch, vital.phase) == (vital.step, f"p{vital.step}")
            seen.add(vital.step)
    assert len(seen) == 50
    assert process.poll() is None


def test_a_rank_that_runs_is_not_interrupted_for_its_stacks(start):
    """Its heartbeat answers: the signal, which may end a busy rank, is only for one whose threads do not run."""
    process, folder = start(BUSY)
    assert until(lambda: "computes" in vitals.request_stacks(vitals.read(folder), 120.0)[0])
    for _ in range(3):
        text = vitals.request_stacks(vitals.read(folder), 120.0)[0]
        assert text.count("hread 0x") == 2, text
    assert (folder / "stacks-0").stat().st_size == 0
    assert process.poll() is None


@pytest.mark.parametrize(("program", "function"), [(SLEEPER, "stuck_here"), (GIL_HOLDER, "holds_the_lock")])
def test_stacks_of_a_blocked_rank(start, program, function):
    """A rank that sleeps, or sits in C code with the interpreter lock held, still says where it is, repeatedly."""
    process, folder = start(program)
    assert until(lambda: function in vitals.request_stacks(vitals.read(folder), 10.0)[0])
    assert until(lambda: function in vitals.request_stacks(vitals.read(folder), 10.0)[0]), "and again"
    assert process.poll() is None, "asking must not end the rank"


def test_a_stopped_rank_answers_nothing(start):
    """A process under SIGSTOP gives no stacks, and asking it ends with the timeout."""
    process, folder = start(SLEEPER)
    process.send_signal(signal.SIGSTOP)
    # one thread takes the signal, the others go on until they hear of it
    assert until(lambda: states(process.pid) == {"T"})
    assert vitals.request_stacks(vitals.read(folder), 0.2) == {0: ""}


def states(pid):
    """The states of a process's threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_a_dead_rank_answers_nothing(start):
    """The files of a rank outlive it; its last words can still be read, its stacks cannot."""
    process, folder = start(SLEEPER)
    process.kill()
    process.wait()
    (vital,) = vitals.read(folder)
    assert vitals.request_stacks([vital], 0.2) == {0: ""}


def test_a_run_that_ends_while_it_is_asked_answers_nothing(start):
    """Its launcher removes the folder: that is no error, as nobody knows when a run ends."""
    process, folder = start(SLEEPER)
    found = vitals.read(folder)
    process.kill()
    process.wait()
    shutil.rmtree(folder)
    assert vitals.request_stacks(found, 0.2) == {0: ""}
    assert vitals.request_calls(found, 0.1, 0.1) == {}


def test_half_made_and_foreign_files_are_left_out(tmp_path):
    """A rank that is just beginning, and files of others, do not disturb."""
    (tmp_path / "rank-0").write_bytes(b"")
    (tmp_path / "rank-1").write_bytes(b"x" * 5000)
    (tmp_path / "rank-2").symlink_to("removed after it was listed")
    (tmp_path / "notes").write_text("hello")
    assert vitals.read(tmp_path) == []


def test_a_missing_folder_is_an_error(tmp_path):
    """Reading where nothing is is an error, not an empty answer."""
    with pytest.raises(FileNotFoundError):
        vitals.read(tmp_path / "none")


def test_watchers_that_ask_at_once_all_get_answers(start):
    """A question may overwrite another one before the rank has read it: its answer is for both."""
    _, folder = start(SLEEPER)
    found = vitals.read(folder)
    answers = []
    askers = [threading.Thread(target=lambda: answers.append(vitals.request_calls(found))) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert [set(answer) for answer in answers] == [{vital.rank for vital in found}] * 8
    assert found


def test_watchers_that_ask_for_stacks_at_once_each_get_all_of_them(start):
    """None gets half an answer, or another one's as well: each text names every thread once."""
    _, folder = start(SLEEPER)
    found = vitals.read(folder)
    assert until(lambda: "stuck_here" in vitals.request_stacks(found, 10.0)[0])
    answers = []
    askers = [threading.Thread(target=lambda: answers.append(vitals.request_stacks(found, 120.0)[0])) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert [text.count("in stuck_here") for text in answers] == [1] * 8, answers
    assert len({text.count("hread 0x") for text in answers}) == 1
