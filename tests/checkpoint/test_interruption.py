"""`Interruption`: whoever is asked to stop, all ranks stop after the same step, and talk about it seldom."""

import itertools
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from rankwise.checkpoint import Checkpointer, Interruption
from rankwise.errors import ConfigError, DesyncError, Interrupted
from rankwise.testing import run_ranks
from rankwise.world import World


def on_two_ranks(world):
    """All cases of this file that need two ranks, on a clock of their own."""
    import rankwise.checkpoint.interruption as room

    now = [0.0]
    room.time = types.SimpleNamespace(monotonic=lambda: now[0])

    def walk(step_s, calls, *, signalled_at=None, **options):
        """Return when this rank stops (calls, seconds), and how often the ranks have talked until then."""
        with Interruption(world, **options) as interruption:
            begun = now[0]
            for call in range(1, calls + 1):
                now[0] += step_s * (1 + world.rank)  # rank 1 is the slower one
                if call == signalled_at and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                    begun = now[0]
                if interruption.should_stop(call):
                    break
            return call, now[0] - begun, interruption.num_agreements, interruption.reason

    def seen_desync():
        with Interruption(world) as interruption:
            try:
                interruption.should_stop(world.rank)
            except DesyncError as error:
                return str(error)

    def changed_phase():
        with Interruption(world) as interruption:
            for where, calls in (("train", 300), ("validate", 1)):
                for _ in range(calls):
                    now[0] += 0.001
                    interruption.should_stop(where=where)
                talked = interruption.num_agreements
                yield talked

    return {
        "fast": walk(0.001, 4000),
        "slow": walk(1.5, 20),
        "signal": walk(0.05, 4000, signalled_at=999),
        "limit": walk(0.05, 4000, max_seconds=30 if world.rank == 1 else None),
        "desync": seen_desync(),
        "phases": list(changed_phase()),
        "left": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    }


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(on_two_ranks, 2)


def test_the_ranks_talk_seldom(ranks):
    """Counted: 4,000 steps of 2 ms cost 9 while the pace doubles, then one all-reduce in 256; slow steps one each."""
    assert [rank["fast"][2] for rank in ranks] == [9 + (4000 - 256) // 256] * 2
    assert [rank["slow"][2] for rank in ranks] == [20, 20]


def test_a_signal_on_one_rank_stops_all(ranks):
    """All stop after the same step, less than 2 s after the signal on the slower rank, and know why."""
    (call, _, _, reason), (call_1, seconds, _, reason_1) = (rank["signal"] for rank in ranks)
    assert call == call_1 >= 999
    assert seconds < 2
    assert reason == reason_1 == "SIGTERM"
    assert all(rank["left"] for rank in ranks)


def test_a_time_limit_of_one_rank_stops_all(ranks):
    """The time limit that one rank was given ends all of them, after the same step, within 2 s."""
    (call, *_), (call_1, seconds, _, reason) = (rank["limit"] for rank in ranks)
    assert call == call_1
    assert 30 <= seconds < 32
    assert "time limit" in reason


def test_different_steps_are_refused(ranks):
    """Ranks that ask at different steps would save different ones: each of them is told."""
    assert [rank["desync"] for rank in ranks] == ["ranks check for a stop at different steps, 0 to 1"] * 2


def test_validation_has_a_pace_of_its_own(ranks):
    """The first batch of a validation asks at once, however fast the training's steps were."""
    for first, second in (rank["phases"] for rank in ranks):
        assert second == first + 1


def test_own_loop_on_one_rank(tmp_path):
    """`Checkpointer.should_stop` notes the signal, answers after the step, and `close` gives the signals back."""
    before = signal.getsignal(signal.SIGUSR1)
    checkpointer = Checkpointer(tmp_path, world=World.single())
    assert not checkpointer.should_stop(1)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert checkpointer.should_stop(2)
    assert checkpointer.should_stop(3)
    checkpointer.close()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_leaving_says_again_please():
    """`leave` ends the process with 75, which `except Exception` does not catch."""
    with pytest.raises(Interrupted) as caught:
        Interruption(World.single(), signals=False).leave()
    assert caught.value.code == 75
    assert not isinstance(caught.value, Exception)


def test_signals_that_are_ignored_stay_ignored():
    """A process under `nohup`, or in the background of a shell, has switched SIGINT off."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption(World.single()):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread(caplog):
    """Handlers belong to the main thread: elsewhere it is said, and the time limit works."""
    stopped = []

    def work():
        with Interruption(World.single(), max_seconds=1e-9) as interruption:
            stopped.append(interruption.should_stop(1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert stopped == [True]
    assert "main thread only" in caplog.text


@pytest.mark.parametrize("text", ["0", "-3", "soon", "nan"])
def test_a_limit_is_a_positive_number(text, monkeypatch):
    """A time limit that cannot be meant is refused, with its name."""
    monkeypatch.setenv("RANKWISE_MAX_SECONDS", text)
    with pytest.raises(ConfigError, match="RANKWISE_MAX_SECONDS"):
        Interruption(World.single())


SECOND = """
import os, signal, sys, time
from rankwise.checkpoint import Interruption
from rankwise.world import World
import rankwise.checkpoint.interruption as room
number = int(sys.argv[1])
with Interruption(World.single()) as interruption:
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)  # a launcher passes on what the scheduler has sent to everybody
    assert interruption.should_stop()
    room._SAME_S = -1.0  # a second has passed
    os.kill(os.getpid(), number)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_at_once(number):
    """The first is noted, the same again within a second is the same signal, a later one ends the process."""
    done = subprocess.run([sys.executable, "-c", SECOND, str(int(number))], timeout=240, check=False)
    assert done.returncode == -number


def test_own_loop_under_torchrun_and_our_launcher(tmp_path):
    """A signal to one rank: both save the same step and end with 75; what goes on has an undisturbed run's bits."""
    script = Path(__file__).with_name("stop_own_loop.py")
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    begin, loop = 0, runpy.run_path(str(script), run_name="read")
    for name, rank, launcher in (("SIGUSR1", 1, torchrun), ("SIGTERM", 0, ["rankwise", "run", "--nproc", "2"])):
        command = [sys.executable, "-m", *launcher, str(script), str(tmp_path), str(rank), name]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
        if launcher is torchrun:
            assert done.returncode == 1, done.stderr  # torchrun's own
            first = done.stderr.split("Root Cause (first observed failure)")[1]
            assert "exitcode  : 75 " in first, done.stderr
        else:
            assert done.returncode == 75, done.stderr
        begin, states = loop["check_stop"](tmp_path, name, begin)
    loop["check_states"](states, begin)


def test_a_signal_may_come_at_any_moment():
    """The second one is delivered between any two instructions that look at the first: never an error."""

    def asked(moment):
        interruption, count = Interruption(World.single(), signals=False), itertools.count()
        interruption._record_signal(signal.SIGUSR1, None)

        def trace(frame, event, _):
            if frame.f_code is not Interruption._stop_code.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(count) == moment:
                interruption._record_signal(signal.SIGTERM, None)
            return trace

        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes only if a frame asks before `settrace`
        sys.settrace(trace)
        try:
            return interruption._stop_code(), len(interruption.received)
        finally:
            sys.settrace(before)

    moments = list(itertools.takewhile(lambda found: found[1] == 2, map(asked, itertools.count())))
    assert len(moments) > 5
    assert {code for code, _ in moments} == {signal.SIGUSR1}
