"""Faults on demand strike once, where they were asked for."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from rankwise.errors import ConfigError
from rankwise.testing import Fault, faults
from rankwise.testing.faults import end_at


def test_a_fault_is_written_as_text():
    """what:who@step, and the attempt if it is not the first; from the environment."""
    assert Fault.parse("kill:1@7") == Fault(what="kill", who="1", step=7)
    assert Fault.parse("hang:all@0").who == "all"
    assert Fault.parse("kill:1@7#2") == Fault(what="kill", who="1", step=7, attempt=2)


@pytest.mark.parametrize("text", ["", "kill", "kill:1", "kill:1@x", "melt:1@3", "kill:@3", "kill:1@3#", "kill:1@3#x"])
def test_anything_else_is_refused(text):
    """The message shows how a fault is written."""
    with pytest.raises(ConfigError, match=r"kill\|term\|usr1\|raise\|hang"):
        Fault.parse(text)


def test_it_strikes_its_rank_step_and_attempt_only(monkeypatch):
    """Other ranks, steps and attempts go on."""
    monkeypatch.setenv("RANKWISE_TEST_FAULT", "raise:1@3")
    fault = Fault.from_environment()
    for rank, step, attempt in ((0, 3, 1), (1, 2, 1), (1, 3, 2)):
        fault.strike(rank=rank, step=step, attempt=attempt)
    with pytest.raises(RuntimeError, match="rank 1 after step 3"):
        fault.strike(rank=1, step=3, attempt=1)
    monkeypatch.delenv("RANKWISE_TEST_FAULT")
    assert Fault.from_environment() is None


def test_a_signal_to_the_supervisor_is_waited_for(monkeypatch):
    """Until it is passed on to this rank: on a busy machine the ranks would train on for any number of steps."""
    heard, kill = [], os.kill
    late = threading.Timer(0.3, lambda: kill(os.getpid(), signal.SIGUSR1))
    monkeypatch.setattr(faults.os, "kill", lambda pid, number: heard.append((pid, number)) or late.start())
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        Fault.parse("usr1:supervisor@3").strike(rank=1, step=3, attempt=1)
        assert heard == []
        Fault.parse("usr1:supervisor@3").strike(rank=0, step=3, attempt=1)
        assert heard == [(os.getppid(), signal.SIGUSR1), signal.SIGUSR1]
        kill(os.getpid(), signal.SIGUSR1)
        assert heard[2:] == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("how", "wanted"), [("before", [1, "killed", 2]), ("after", [1, 2, "killed"])])
def test_a_call_is_the_last_of_its_process(monkeypatch, how, wanted):
    """The process dies before or after the call that was chosen, and not with the ones before it."""
    done = []
    monkeypatch.setattr(faults.os, "kill", lambda *_: done.append("killed"))
    owner = SimpleNamespace(work=done.append)
    end_at(owner, "work", 2, how)
    for number in (1, 2):
        owner.work(number)
    assert done == wanted


def test_a_call_raises():
    """Instead of being made; the ones before and after it are."""
    done = []
    owner = SimpleNamespace(work=done.append)
    end_at(owner, "work", 2, KeyError("two"))
    owner.work(1)
    with pytest.raises(KeyError, match="two"):
        owner.work(2)
    owner.work(3)
    assert done == [1, 3]
