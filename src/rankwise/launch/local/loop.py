"""The supervisor's event loop: descriptors, signals and timers in one thread."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

CHECK_INTERVAL_S = 1.0  # how often to check, without an event, whether the ranks still make progress
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})  # these end a launch
_REPEATED_S = 0.3  # a wrapper may pass on a Ctrl-C that its child has got from the terminal as well
_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGWINCH", "SIGTSTP")


class Loop:
    """Waits for descriptors to become readable and for signals, without polling, and calls periodic callbacks.

    A context manager, to be entered in the main thread: it installs handlers for the supervisor's signals and restores
    the old ones. A SIGHUP that was ignored before (`nohup`) stays ignored.

    Attributes:
        signals: numbers of received signals that were not yet taken out, oldest first.
    """

    def __init__(self) -> None:
        self.signals: deque[int] = deque()
        self._selector = selectors.DefaultSelector()
        self._previous: dict[int, Any] = {}
        self._ending_s: dict[int, float] = {}  # when each of the signals that end a launch was last taken
        self._repeated: dict[Callable[[], object], tuple[float, float]] = {}  # seconds between calls, when it is due

    def __enter__(self) -> Self:
        self._wake_read, self._wake_write = os.pipe()
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
        for name in _HANDLED:
            number = getattr(signal, name)
            if name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._take)
        self._previous_wake = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._drain)
        return self

    def _take(self, number: int, _frame: object) -> None:
        """Note a signal; one that ends a launch only once if it comes twice at the same time: a second one kills."""
        now = time.monotonic()
        if number in ENDING:
            if now < self._ending_s.get(number, -math.inf) + _REPEATED_S:
                return
            self._ending_s[number] = now
        self.signals.append(number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._previous_wake)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def watch(self, fd: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`; do nothing if it is not watched."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def every(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback` about every `seconds`, from `step`."""
        self._repeated[callback] = seconds, time.monotonic() + seconds

    def remove_timer(self, callback: Callable[[], object]) -> None:
        """Stop the periodic calls; do nothing if there are none."""
        self._repeated.pop(callback, None)

    def step(self, timeout_s: float | None) -> None:
        """Wait for an event or the timeout, then run the callbacks of descriptors and after them the periodic ones."""
        if self._repeated:
            due_s = max(0.0, min(due for _, due in self._repeated.values()) - time.monotonic())
            timeout_s = due_s if timeout_s is None else min(timeout_s, due_s)
        if self.signals:
            timeout_s = 0
        for key, _ in self._selector.select(timeout_s):
            if self._selector.get_map().get(key.fd) is not None:  # unless an earlier callback has forgotten it
                key.data()
        now = time.monotonic()
        for callback, (seconds, due) in list(self._repeated.items()):
            if now >= due and callback in self._repeated:  # unless an earlier one has stopped it
                self._repeated[callback] = seconds, now + seconds
                callback()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
