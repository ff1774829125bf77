"""The rank's side of vitals."""

import os
import subprocess
import sys
import threading
import time

import pytest

from rankwise import vitals
from rankwise.errors import LaunchError
from rankwise.vitals import recorder
from rankwise.vitals.layout import ASK


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


def until(folder, holds):
    """Return what is read once something holds of it: the next heartbeat writes what was noted."""
    deadline = time.monotonic() + 60
    while not holds(found := vitals.read(folder)[0]):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def test_a_wait_for_data_lasts_until_the_next_beat(running):
    """It is a phase and progress of its own, and leaves epoch, step and the number of beats alone."""
    vitals.beat(epoch=2, step=5, phase="step")
    (before,) = vitals.read(running)
    vitals.wait()
    waiting = until(running, lambda vital: vital.phase == "data")
    assert (waiting.epoch, waiting.step, waiting.num_beats) == (2, 5, 1)
    assert waiting.progress_s > before.progress_s
    vitals.beat(step=6, phase="step")
    (after,) = vitals.read(running)
    assert (after.epoch, after.step, after.phase, after.num_beats) == (2, 6, "step", 2)


def test_steps_in_quick_succession_are_written_twice_a_second(running):
    """The newest one, and when it began; a beat in between says the newest too."""
    time.sleep(0.01)
    vitals.beat_step(0, 0)
    (first,) = vitals.read(running)
    assert (first.epoch, first.step, first.phase, first.num_beats) == (0, 0, "step", 1)
    noted_s = time.monotonic()
    for step in range(1, 1000):
        vitals.beat_step(0, step)
    last = until(running, lambda vital: vital.step == 999)
    assert last.phase == "step"
    assert last.num_beats < 900
    assert noted_s <= last.progress_s <= time.monotonic()
    vitals.beat_step(1, 1000)
    vitals.beat_step(1, 1001)
    vitals.beat(phase="checkpoint")
    said = until(running, lambda vital: vital.heartbeat_s > last.heartbeat_s + 1.0)
    assert (said.epoch, said.step, said.phase) == (1, 1001, "checkpoint")


def test_the_last_step_is_written_when_vitals_end(tmp_path):
    """Whoever comes after the end of a rank reads how far it was."""
    vitals.start(tmp_path, 0)
    for step in range(100):
        vitals.beat_step(3, step)
    vitals.stop()
    (vital,) = vitals.read(tmp_path)
    assert (vital.epoch, vital.step) == (3, 99)


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
    with pytest.raises(LaunchError, match="already running"):
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


def test_an_answer_that_fails_leaves_the_heartbeat(running, monkeypatch):
    """A torch of another form may raise whatever it likes: the rank still shows that it lives."""
    asked = threading.Event()

    def failing():
        asked.set()
        raise ArithmeticError

    monkeypatch.setattr(recorder, "last_calls", failing)
    (running / f"{ASK}calls").write_text("1 0.0")
    assert asked.wait(60)
    before = vitals.read(running)[0].heartbeat_s
    until(running, lambda vital: vital.heartbeat_s > before)


def test_the_end_does_not_wait_for_a_call_that_hangs(tmp_path, monkeypatch):
    """The thread may be inside torch for ever: it is left behind, and writes nothing more."""
    asked, freed = threading.Event(), threading.Event()
    monkeypatch.setattr(recorder, "last_calls", lambda: [asked.set(), freed.wait(20)])
    monkeypatch.setattr(recorder, "_JOIN_S", 0.01, raising=False)
    vitals.start(tmp_path, 0)
    thread = recorder._recorder._thread
    (tmp_path / f"{ASK}calls").write_text("1 0.0")
    assert asked.wait(60)
    vitals.stop()
    was_left = thread.is_alive()
    freed.set()
    thread.join(60)
    assert was_left
    assert not thread.is_alive()
