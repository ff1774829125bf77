"""Faults on demand: a rank, all ranks or the supervisor end or hang at a given step of a given attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, Self

from rankwise.errors import ConfigError

_VARIABLE = "RANKWISE_TEST_FAULT"
_PASSED_ON_S = 60.0
_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "usr1": signal.SIGUSR1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, written as ``what:who@step``, for example ``kill:1@7``, ``kill:all@3``, ``hang:0@5``.

    ``kill:1@7#2`` happens in the second attempt of a run.

    Attributes:
        what: "kill" (SIGKILL), "term" (SIGTERM), "usr1" (SIGUSR1), "raise" (a RuntimeError) or "hang" (sleeps).
        who: a rank, "all" ranks, or the "supervisor" (the parent process, for signals only).
        step: number of completed optimizer steps at which it happens.
        attempt: the attempt of the run in which it happens.
    """

    what: Literal["kill", "term", "usr1", "raise", "hang"]
    who: str
    step: int
    attempt: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the fault that `text` describes.

        Raises:
            ConfigError: the text is invalid.
        """
        what, _, rest = text.partition(":")
        who, _, when = rest.partition("@")
        step, several, attempt = when.partition("#")
        attempt = attempt if several else "1"
        if what not in (*_SIGNALS, "raise", "hang") or not (who and step.isdecimal() and attempt.isdecimal()):
            raise ConfigError(
                f"a fault is written as kill|term|usr1|raise|hang:RANK|all|supervisor@STEP[#ATTEMPT], got {text!r}"
            )
        return cls(what=what, who=who, step=int(step), attempt=int(attempt))  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the fault of RANKWISE_TEST_FAULT, None if there is none."""
        text = os.environ.get(_VARIABLE)
        return cls.parse(text) if text else None

    def strike(self, *, rank: int, step: int, attempt: int) -> None:
        """Cause the fault if rank, step and attempt match; call this after each completed step."""
        if step != self.step or attempt != self.attempt or self.who not in (str(rank), "all", "supervisor"):
            return
        if self.what == "raise":
            raise RuntimeError(f"a fault on demand in rank {rank} after step {step}")
        if self.what in _SIGNALS:
            # only one rank signals the supervisor; the others train on until its end ends them
            if self.who != "supervisor":
                os.kill(os.getpid(), _SIGNALS[self.what])
            elif rank == 0:
                _signal_supervisor(_SIGNALS[self.what])
            return
        while True:
            time.sleep(3600)


def _signal_supervisor(number: signal.Signals) -> None:
    """Send the signal and wait until the supervisor has forwarded it, so that no further steps run meanwhile."""
    before = None if number == signal.SIGKILL else signal.getsignal(number)
    if not callable(before):  # the signal ends this process
        os.kill(os.getppid(), number)
        return
    came: list[int] = []

    def note(passed: int, frame: FrameType | None) -> None:
        came.append(passed)
        before(passed, frame)

    signal.signal(number, note)
    os.kill(os.getppid(), number)
    deadline = time.monotonic() + _PASSED_ON_S
    while not came and time.monotonic() < deadline:
        time.sleep(0.01)
    signal.signal(number, before)


def end_at(owner: Any, name: str, count: int, how: Literal["before", "after"] | Exception) -> None:
    """End or fail at the `count`-th call of a function, counted from now on in one thread.

    Args:
        owner: module or class that has the function.
        name: its name there.
        count: number of the call, from 1.
        how: SIGKILL of this process before or after that call, or the exception to raise instead.
    """
    real, calls = getattr(owner, name), 0

    def last(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and isinstance(how, Exception):
            raise how
        if calls == count and how == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == count and how == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, last)


_FORKED = """
import os, signal, threading, warnings
warnings.simplefilter("ignore")
{setup}
inside, done = threading.Event(), threading.Event()
def holding():
    with {lock}:
        inside.set()
        done.wait()
threading.Thread(target=holding, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
{child}
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def fork_while_held(setup: str, *, lock: str, child: str) -> int:
    """Fork a process while one of its threads holds a lock; return the exit status of the child.

    Args:
        setup: code to run first.
        lock: expression for the lock or condition that the thread holds from the fork on.
        child: code of the child, which must end with ``os._exit``; else its status is 1. It is killed after 30 s.
    """
    body = textwrap.indent(textwrap.dedent(child), "    ")
    program = [sys.executable, "-c", _FORKED.format(setup=textwrap.dedent(setup), lock=lock, child=body)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    if done.returncode:
        raise AssertionError(done.stderr)
    return int(done.stdout)
