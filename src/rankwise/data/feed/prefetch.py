"""Prefetch: a background thread reads the steps that were asked for, and a few more."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from rankwise.errors import WorldError

LEAST_DEPTH = 2  # steps that lie ready: one to hand over while the next is read

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C")


class PrefetchQueue(Generic[T]):
    """A queue of items in order, with at most one error at its end.

    Args:
        depth: most items in the queue.
        on_wait: called when the consumer begins to wait; must not block.

    Attributes:
        closed: whether the consumer has left.
        pid: the process that reads.
    """

    def __init__(self, depth: int, on_wait: Callable[[], object] = lambda: None) -> None:
        self._depth, self._on_wait = depth, on_wait
        self._num_waiting = 0
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self.closed = False
        self._changed = threading.Condition()
        self.pid = os.getpid()

    def is_awaited(self) -> bool:
        """Whether a consumer waits for an item now and the queue is empty."""
        return self._num_waiting > 0 and not self._items  # a consumer that was woken may not have run yet

    def put(self, item: T) -> bool:
        """Add an item; wait for room. Return False once the consumer has left: the item is not added."""
        with self._changed:
            while not self.closed and len(self._items) >= self._depth:
                self._changed.wait()
            if self.closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that no item follows. After the remaining items the consumer gets the error, if there is one."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self, *, timeout_s: float | None = None, until: Callable[[], bool] | None = None) -> T | None:
        """Wait for the next item and return it; None after the last one, or if the queue is empty and `until` holds.

        Args:
            timeout_s: longest wait; None = for ever.
            until: checked again after each `wake`; must not block.

        Raises:
            TimeoutError: no item came in time.
            WorldError: this process was forked from the one that reads, whose threads it lacks.
            BaseException: the error that ended the reader, once all items before it are taken.
        """
        if self.pid != os.getpid():  # the lock, too, may be held for ever
            raise WorldError(
                "this iteration began before the process was forked, and its reader thread stayed in the parent: begin "
                "a new iteration in the child"
            )
        with self._changed:
            in_time = True
            if not self._items:
                self._num_waiting += 1  # set before on_wait(), so that a reader woken by it sees the count
                try:
                    self._on_wait()
                    in_time = self._changed.wait_for(
                        lambda: bool(self._items) or self._ended or self.closed or (until is not None and until()),
                        timeout_s,
                    )
                finally:
                    self._num_waiting -= 1
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                if self.is_awaited():
                    self._on_wait()  # another consumer waits; when it called on_wait(), this item was there
                return item
            if self._error is not None:
                raise self._error
            if not in_time:
                raise TimeoutError(f"no step was ready within {timeout_s} s")
            return None

    def wake(self) -> None:
        """Let a waiting consumer check again whether it still has to wait."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> list[T]:
        """Leave: wakes the reader, and returns the items that were not taken."""
        with self._changed:
            self.closed = True
            left = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            return left


class Reader(Protocol[S_contra, T_co]):
    """Runs in the thread of a `ReadAhead`: turns steps (S) into what was read for them (T)."""

    is_awaited: Callable[[], bool]
    """Whether a consumer waits for what is read; set by the object that runs this reader."""

    def read(self, steps: Iterable[S_contra], is_asked: Callable[[], bool]) -> Generator[T_co | None, None, None]:
        """Yield what was read for each step; yield None while the step was not asked for (`is_asked`) but has to be."""
        ...

    def wake(self) -> None:
        """Check again whether a consumer waits. The consumer calls it when it begins to wait; must not block."""
        ...

    def close(self) -> None:
        """Stop waiting for memory: reading ends. Any thread may call it."""
        ...


_JOIN_S = 30.0
_LOG = logging.getLogger(__name__)


class ReadAhead(Generic[S, T]):
    """Runs a `Reader` in the background, with at most `depth` results ready: the one prefetcher of all loaders.

    It reads the steps that were asked for, plus a few beyond them, which belong to an epoch that may come next. Then
    its thread ends; asking for more starts another thread, which continues there. The thread also ends when reading
    fails (the consumer gets the error after the steps before it) and when `close` is called. Interpreter exit calls
    `close`, too; garbage collection calls it without waiting.

    Args:
        reader: reads the steps.
        steps: in order; the thread iterates over them.
        depth: most steps that lie ready.
        on_thread: called when each thread starts.
        is_away: whether the thread runs foreign code that nothing can wake; then `close` does not wait for it.

    Attributes:
        take: `PrefetchQueue.take`: waits for the next step and returns it; None after the last one, and once closed.
        wake: `PrefetchQueue.wake`: lets a waiting `take` check again whether it still has to wait.
    """

    def __init__(
        self,
        reader: Reader[S, T],
        steps: Iterable[S],
        *,
        depth: int,
        on_thread: Callable[[], None] | None = None,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reader, self._is_away = reader, is_away
        self._work: _Work[S, T] = _Work(reader, steps, depth=depth, on_thread=on_thread)
        self._thread: _Thread | None = None
        self.take, self.wake = self._work.queue.take, self._work.queue.wake
        close_at_exit(self)

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that reads."""
        return self._work.queue.pid != os.getpid()

    def ask(self, num_steps: int, *, beyond: int) -> None:
        """Read so many more steps, and some beyond them that may be asked for later.

        Raises:
            RuntimeError: the system cannot start a thread; nothing was asked then, and the call may be repeated.
        """
        if self._work.ask(num_steps, beyond=beyond):
            self._thread = _Thread(self._work.run, self._is_away)
            try:
                self._thread.start()
            except RuntimeError:
                self._work.forgo(num_steps)
                raise

    @property
    def closed(self) -> bool:
        """Whether nothing more can be taken."""
        return self._work.queue.closed

    def close(self, *, waits: bool = True) -> None:
        """Stop the thread; it ends after the chunk that it is reading. Calling it twice is fine.

        Args:
            waits: whether to wait for that.
        """
        if self.is_elsewhere:
            return  # a forked process has no such thread, and its locks may be held for ever
        self._reader.close()
        self._work.queue.close()
        if self._thread is None or self._thread.ends(waits=waits):
            self._work.items.close()

    def __del__(self) -> None:
        if hasattr(self, "_work") and not self.closed:  # interpreter exit has closed it, and may have emptied `os`
            self.close(waits=False)  # by any thread that collects garbage, in the midst of anything


class _Thread(threading.Thread):
    """The thread of a reader, which it may outlive."""

    def __init__(self, run: Callable[[], None], is_away: Callable[[], bool]) -> None:
        super().__init__(target=run, name="rankwise-reader", daemon=True)
        self._is_away = is_away

    def ends(self, *, waits: bool) -> bool:
        """Whether it has ended."""
        # a garbage collection may end an iteration from within this thread, which cannot wait for itself, or from
        # within that of another reader, in the midst of something that this one waits for
        waits = waits and not isinstance(threading.current_thread(), _Thread)
        if self.is_alive() and waits and not self._is_away():
            self.join(_JOIN_S)
            if self.is_alive():
                self._is_away = lambda: True
                _LOG.warning("a reader is still in a read %.0f s after it was closed: it is abandoned", _JOIN_S)
        return not self.is_alive()


class _Work(Generic[S, T]):
    """What the threads run, one at a time. It must not reference the `ReadAhead`: its destruction stops them."""

    def __init__(
        self, reader: Reader[S, T], steps: Iterable[S], *, depth: int, on_thread: Callable[[], None] | None
    ) -> None:
        self.queue: PrefetchQueue[T] = PrefetchQueue(depth, on_wait=reader.wake)
        reader.is_awaited = self.queue.is_awaited
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
        """Read as far as allowed."""
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
                if not self.queue.put(step):
                    return
                del step  # the next read may need its memory
            else:
                return
        except BaseException as error:  # noqa: BLE001  (raised again in the consumer)
            self._end(error)
        else:
            self._end(None)
        finally:
            if self.queue.closed:  # nobody may be left who does it
                self.items.close()

    def forgo(self, num_steps: int) -> None:
        """Take back what was asked for: no thread could be started for it."""
        with self._lock:
            self._asked -= num_steps
            self._running = False

    def _goes_on(self, *, beyond: bool) -> bool:
        with self._lock:
            self._running = self._num_read < self._asked + (self._beyond if beyond else 0)
            return self._running

    def _is_asked(self) -> bool:
        return self._num_read < self._asked

    def _end(self, error: BaseException | None) -> None:
        self._ended = True
        self.queue.end(error)


_LIVE: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(thing: C) -> C:
    """Close a reader, or a generator, at interpreter exit: later, Python 3.13 has emptied the modules it needs."""
    if not _LIVE:
        # registered as late as possible: exit handlers run in reverse order, so what the reader uses still exists
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _LIVE.add(thing)
    return thing


def _close_all() -> None:
    for thing in list(_LIVE):
        with suppress(ValueError):  # a generator that another thread runs just now
            thing.close()
    for thread in threading.enumerate():
        if isinstance(thread, _Thread):  # of a reader that is gone; native code must not outlive the interpreter
            thread.ends(waits=True)
