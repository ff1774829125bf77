"""`Interruption`: turns signals and a time limit into one decision of all ranks, between two steps."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from rankwise import vitals
from rankwise.errors import ConfigError, DesyncError, Interrupted
from rankwise.world import World

MAX_SECONDS = "RANKWISE_MAX_SECONDS"
_LOG = logging.getLogger("rankwise.checkpoint")
_TIME_IS_UP = 1000  # in place of a signal number
# a scheduler signals every process, and a launcher forwards its own signal: a repetition this soon is the same signal
_SAME_S = 1.0
_MOST_CALLS = 256  # a step that suddenly becomes slow must not wait for thousands of others


class Interruption:
    """Lets all ranks stop after the same step if one of them is asked to. Every rank makes one.

    SIGTERM, SIGINT and SIGUSR1 (a scheduler's warning) are only recorded; the loop checks between two steps::

        with Interruption(world) as interruption:
            for batches in loader:
                ...
                if interruption.should_stop(step):
                    checkpointer.save(step, parts)
                    interruption.leave()

    A second signal of a kind, a second or more after the first, ends the process at once. Earlier signal
    handlers are restored at the end. Ignored signals stay ignored; at a prompt and in a notebook SIGINT is not
    changed. In a thread other than the main one only the time limit works, with a warning.

    Args:
        world: default ``World.current()``.
        max_seconds: stop after this many seconds from now; None = RANKWISE_MAX_SECONDS, else never.
        signals: False leaves signals alone.
        within_s: approximate limit in seconds until all ranks have agreed.

    Attributes:
        reason: why all ranks stop, "" as long as they do not.
        received: signals that this rank received; may be empty.
        num_agreements: number of collectives so far.

    Raises:
        ConfigError: `max_seconds` is not a positive number.
    """

    def __init__(
        self,
        world: World | None = None,
        *,
        max_seconds: float | None = None,
        signals: bool = True,
        within_s: float = 2.0,
    ) -> None:
        self._world = World.current() if world is None else world
        self._limit_s = _limit(max_seconds)
        self._within_s = within_s
        self._begun_s, self._agreed_s = time.monotonic(), -math.inf
        self._process = os.getpid()
        self.received: dict[str, tuple[int, float]] = {}
        self._previous: dict[int, Any] = {}
        self._calls, self._every, self._where = 0, 1, ""
        self.reason, self.num_agreements = "", 0
        if signals:
            self._install_handlers()

    def should_stop(self, step: int | None = None, *, where: str = "train") -> bool:
        """Return whether all ranks stop now: the same answer on all of them. Every rank calls it equally often.

        With several ranks, some of the calls are a small all-reduce; their distance depends on the time that the
        slowest rank takes from call to call.

        Args:
            step: optimizer steps done; ranks with different ones are refused.
            where: the activity between two calls. After a change, the distance is determined again.

        Raises:
            DesyncError: ranks have different steps.
        """
        if self.reason:
            return True
        if self._world.world_size == 1:
            if not self.received and time.monotonic() - self._begun_s < self._limit_s:  # at every step: no further call
                return False
            self._decide(self._stop_code(), step)
            return bool(self.reason)
        if where != self._where:
            self._where, self._calls, self._every, self._agreed_s = where, 0, 1, -math.inf  # the pace is unknown
        self._calls += 1
        if self._calls % self._every == 0:
            self._agree(step)
        return bool(self.reason)

    def leave(self) -> NoReturn:
        """End this process with the exit code that asks for a restart.

        Raises:
            Interrupted: always.
        """
        raise Interrupted(f"stopped: {self.reason}")

    def close(self) -> None:
        """Restore the signal handlers. Calling it twice is fine."""
        while self._previous:
            number, before = self._previous.popitem()
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _install_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            _LOG.warning("signals are handled in the main thread only: SIGTERM here ends the process without a save")
            return
        prompt = hasattr(sys, "ps1") or "ipykernel" in sys.modules
        for name in ("SIGTERM", "SIGUSR1", *(() if prompt else ("SIGINT",))):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # in a forked child the parent decides
        # Runs between any two instructions of the main thread, which may hold any lock: so it takes none, and does not
        # log. It only records the signal; `should_stop` reads it.
        kind = "warning" if number == getattr(signal, "SIGUSR1", None) else "end"
        first = self.received.setdefault(kind, (number, time.monotonic()))[1]
        # after a failure of another rank nothing can be saved together: the launcher wants this process to end
        if time.monotonic() - first > _SAME_S or (number == signal.SIGTERM and vitals.has_failed()):
            signal.signal(number, signal.SIG_DFL)
            os.kill(self._process, number)

    def _stop_code(self) -> int:
        """Return the number of a received signal, or that the time is up; 0 otherwise."""
        if self.received:
            # an atomic copy: a signal recorded during an iteration would raise an error in it
            return list(self.received.values())[0][0]  # noqa: RUF015
        return _TIME_IS_UP if time.monotonic() - self._begun_s >= self._limit_s else 0

    def _agree(self, step: int | None) -> None:
        now, number = time.monotonic(), -1 if step is None else step
        mine = np.array([self._stop_code(), (now - self._agreed_s) / self._every, number, -number], dtype=np.float64)
        code, slowest_s, most, least = self._world.all_reduce(mine, op="max").tolist()
        if most != -least:
            raise DesyncError(f"ranks check for a stop at different steps, {int(-least)} to {int(most)}")
        self.num_agreements += 1
        self._calls, self._agreed_s = 0, time.monotonic()
        # half of the time for calls in between, half for one that takes longer
        fitting = int(self._within_s / 2 / max(slowest_s, 1e-6))
        self._every = max(1, min(fitting, 2 * self._every, _MOST_CALLS))
        self._decide(int(code), step)

    def _decide(self, code: int, step: int | None) -> None:
        if not code:
            return
        limit = f"the time limit of {self._limit_s:g} s" if self._limit_s < math.inf else "the time limit"
        self.reason = limit if code == _TIME_IS_UP else signal.Signals(code).name
        if self._world.is_main:
            after = "" if step is None else f" after step {step}"
            _LOG.warning("%s: saving and stopping%s (a second signal stops at once)", self.reason, after)


def _limit(given: float | None) -> float:
    text = os.environ.get(MAX_SECONDS) if given is None else given
    if text is None or text == "":
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ConfigError(f"max_seconds, or {MAX_SECONDS}, must be a positive number of seconds; got {text!r}")
    return seconds
