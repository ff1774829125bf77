"""`ReadAhead`: reads the steps that were asked for in the background, and a few more."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable

from rankwise.data.feed.conveyor import Conveyor
from rankwise.data.feed.reader import ReadStep, StepReader
from rankwise.data.feed.together import Shares

__all__ = ["ReadAhead"]

_JOIN_S = 30.0
_LOG = logging.getLogger(__name__)


class ReadAhead:
    """A `StepReader` in the background, with at most `depth` steps ready.

    It reads the steps that were asked for and, where there are more, a few beyond them: those of an epoch that may
    come next. Then its thread ends; asking for more starts another that goes on where it was. It also ends when
    reading fails (the error reaches the consumer after the steps before it) and when `close` is called, as the garbage
    collection does, and the exit of the interpreter.

    Args:
        reader: reads them.
        steps: in order; the thread takes them.
        depth: most steps that lie ready.
        on_thread: called at the beginning of each thread.
    """

    def __init__(
        self, reader: StepReader, steps: Iterable[Shares], *, depth: int, on_thread: Callable[[], None] | None = None
    ) -> None:
        self._pid = os.getpid()
        self._reader = reader
        self._work = _Work(reader, steps, depth=depth, on_thread=on_thread)
        self._thread: threading.Thread | None = None
        _close_at_exit(self)

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that was forked from the one that reads."""
        return self._pid != os.getpid()

    def ask(self, num_steps: int, *, beyond: int) -> None:
        """Let it read so many more steps, and some beyond them that may be asked for later."""
        if self._work.ask(num_steps, beyond=beyond):
            self._thread = threading.Thread(target=self._work.run, name="rankwise-reader", daemon=True)
            self._thread.start()

    def take(self) -> ReadStep | None:
        """Return the next step, waiting for it; None after the last one, and once closed.

        Raises:
            BaseException: the error that ended the reading, once the steps before it are taken.
        """
        return self._work.conveyor.take()

    def close(self) -> None:
        """Stop the thread and wait for it; it ends after the chunk that it is reading. May be called twice."""
        if self.is_elsewhere:
            return  # in a forked process there is no such thread, and its locks may be held for ever
        self._reader.close()
        self._work.conveyor.close()
        # a garbage collection may close a reader from within its own thread, which then cannot wait for itself
        if self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                _LOG.warning("a reader is still inside one read %.0f s after it was closed: it is left behind", _JOIN_S)
                return
        self._work.items.close()

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self.close()


class _Work:
    """What the threads do, one at a time; they must not know the `ReadAhead`, whose end is what stops them."""

    def __init__(
        self, reader: StepReader, steps: Iterable[Shares], *, depth: int, on_thread: Callable[[], None] | None
    ) -> None:
        self.conveyor: Conveyor[ReadStep] = Conveyor(depth, on_wait=reader.wake)
        reader.is_awaited = self._is_awaited
        self.items = reader.read(steps, self._is_asked)
        self._on_thread = on_thread
        self._num_read = self._asked = self._beyond = 0
        self._running = self._ended = False
        self._lock = threading.Lock()

    def ask(self, num_steps: int, *, beyond: int) -> bool:
        """Ask for more; True if a thread has to be started."""
        with self._lock:
            self._asked += num_steps
            self._beyond = beyond
            idle, self._running = not self._running and not self._ended, True
            return idle

    def run(self) -> None:
        """Read what may be read."""
        try:
            if self._on_thread is not None:
                self._on_thread()
            while self._goes_on(beyond=True):
                try:
                    step = next(self.items)
                except StopIteration:
                    break
                if step is None:
                    if self._goes_on(beyond=False):
                        continue
                    return
                self._num_read += 1
                if not self.conveyor.put(step):
                    return
                del step  # what is read next may need its memory
            else:
                return
        except BaseException as error:  # noqa: BLE001  (raised again in the consumer)
            self._end(error)
        else:
            self._end(None)

    def _goes_on(self, *, beyond: bool) -> bool:
        with self._lock:
            self._running = self._num_read < self._asked + (self._beyond if beyond else 0)
            return self._running

    def _is_asked(self) -> bool:
        return self._num_read < self._asked

    def _is_awaited(self) -> bool:
        return self.conveyor.is_awaited

    def _end(self, error: BaseException | None) -> None:
        self._ended = True
        self.conveyor.end(error)


_LIVE: weakref.WeakSet[ReadAhead] = weakref.WeakSet()


def _close_at_exit(reader: ReadAhead) -> None:
    if not _LIVE:
        # registered as late as possible: exit handlers run in reverse order, so what the reader uses is still there
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _LIVE.add(reader)


def _close_all() -> None:
    for reader in list(_LIVE):
        reader.close()
