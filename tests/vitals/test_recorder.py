"""The rank's side of vitals."""

import os
import subprocess
import sys
import threading
import time

import pytest

from rankwise import vitals
from rankwise.errors import LaunchError


@pytest.fixture
def running(tmp_path):
    vitals.start(tmp_path, 3)
    yield tmp_path
    vitals.stop()


def test_beat_without_start_does_nothing(tmp_path, monkeypatch):
    """A script that beats runs everywhere, also where nobody watches: no file, no thread."""
    monkeypatch.chdir(tmp_path)
    before = threading.active_count()
    vitals.beat(epoch=1, step=2, phase="train")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() <= before


def test_what_is_said_is_read(running):
    """Epoch, step and phase arrive as said, with the rank and its process."""
    vitals.beat(epoch=1, step=20, phase="träin")
    (vital,) = vitals.read(running)
    assert (vital.rank, vital.pid) == (3, os.getpid())
    assert (vital.epoch, vital.step, vital.phase) == (1, 20, "träin")
    assert vital.num_beats == 1
    assert vital.place == "epoch 1, step 20, phase träin"


def test_what_is_not_said_stays(running):
    """A later beat changes only what it names; nothing was said before the first."""
    (vital,) = vitals.read(running)
    assert (vital.epoch, vital.step, vital.phase, vital.num_beats) == (None, None, "", 0)
    assert vital.place == "no beat yet"
    vitals.beat(epoch=2, step=5)
    vitals.beat(phase="eval")
    (vital,) = vitals.read(running)
    assert (vital.epoch, vital.step, vital.phase, vital.num_beats) == (2, 5, "eval", 2)


def test_a_wait_for_data_lasts_until_the_next_beat(running):
    """It is a phase and progress of its own, and leaves epoch, step and the number of beats alone."""
    vitals.beat(epoch=2, step=5, phase="step")
    (before,) = vitals.read(running)
    vitals.wait()
    (waiting,) = vitals.read(running)
    assert (waiting.epoch, waiting.step, waiting.phase, waiting.num_beats) == (2, 5, "data", 1)
    assert waiting.progress_s > before.progress_s
    vitals.beat(step=6, phase="step")
    (after,) = vitals.read(running)
    assert (after.step, after.phase, after.num_beats) == (6, "step", 2)


def test_progress_and_heartbeat_have_clocks_of_their_own(running):
    """The heartbeat goes on without progress; progress moves only with a beat."""
    (before,) = vitals.read(running)
    deadline = time.monotonic() + 20
    while vitals.read(running)[0].heartbeat_s == before.heartbeat_s:
        assert time.monotonic() < deadline, "the heartbeat stands still"
        time.sleep(0.05)
    (after,) = vitals.read(running)
    assert after.progress_s == before.progress_s
    vitals.beat()
    assert vitals.read(running)[0].progress_s > before.progress_s


def test_long_phase_is_cut_between_characters(running):
    """A phase of any length and script leaves valid text of at most 64 bytes."""
    vitals.beat(phase="ä" * 100)
    assert vitals.read(running)[0].phase == "ä" * 32
    vitals.beat(phase="x" + "ä" * 100)
    assert vitals.read(running)[0].phase == "x" + "ä" * 31


def test_second_start_is_refused(running):
    """One process is one rank."""
    with pytest.raises(LaunchError, match="run already"):
        vitals.start(running, 4)


def test_missing_folder_names_the_mend(tmp_path):
    """A folder that cannot be written is an error with the variable to change."""
    with pytest.raises(LaunchError, match="RANKWISE_VITALS"):
        vitals.start(tmp_path / "none", 0)


def test_a_forked_child_does_not_beat(running):
    """A forked loader worker is not the rank: its beats are not the rank's."""
    vitals.beat(step=1)
    program = (
        "import os, sys; from rankwise import vitals; vitals.start(sys.argv[1], 7); vitals.beat(step=1)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    vitals.beat(step=99); os._exit(0)\n"
        "os.waitpid(pid, 0); vitals.stop()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(running)], check=True)
    assert [vital.step for vital in vitals.read(running) if vital.rank == 7] == [1]


def test_a_beat_is_cheap(running):
    """A beat costs microseconds: the best of several thousand-beat rounds stays under 20 us each."""
    best = min(_time_of_beats(1000) for _ in range(10))
    assert best < 20e-6 * 1000


def _time_of_beats(count):
    start = time.thread_time()
    for step in range(count):
        vitals.beat(epoch=1, step=step, phase="train")
    return time.thread_time() - start


def test_no_heavy_import():
    """The room loads neither torch nor NumPy."""
    program = "import sys, rankwise.vitals; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
