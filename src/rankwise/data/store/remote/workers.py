"""Threads that wait for stores, and the reads that are under way."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from rankwise.errors import DataError

__all__ = ["PendingReads", "Workers"]


class _Queue:
    """What the threads share; they hold no reference to their `Workers`, so that it can be collected."""

    def __init__(self) -> None:
        # A `Condition` of this kind may be taken again by the thread that has it. It must: a garbage collection that
        # begins in such a thread may end these `Workers`, which closes the queue.
        self.changed = threading.Condition()
        self.tasks: deque[Callable[[], None]] = deque()
        self.num_idle = 0
        self.num_threads = 0
        self.closed = False
        self.pid = os.getpid()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def serve(self) -> None:
        while (task := self._next()) is not None:
            task()
            del task  # it holds the bytes that it brought

    def _next(self) -> Callable[[], None] | None:
        with self.changed:
            self.num_idle += 1
            self.changed.wait_for(lambda: bool(self.tasks) or self.closed)
            self.num_idle -= 1
            if self.tasks:  # before the end is looked at: what waits when it is closed is still run
                return self.tasks.popleft()
            self.num_threads -= 1
            return None


class Workers:
    """Runs tasks on up to `limit` threads, in the order they come.

    Tasks see to their own errors. Tasks that wait when it is closed are still run (theirs is to see that nobody wants
    them any more), so nobody waits for a task in vain.

    Args:
        limit: most threads.
        on_end: called when it is closed, is collected, or the main thread has ended; threads that wait inside a task
            can be told by it.
    """

    def __init__(self, limit: int, *, on_end: Callable[[], None]) -> None:
        self._limit = limit
        self._queue = _Queue()
        self._end = weakref.finalize(self, _end, self._queue, on_end)
        self._end.atexit = False  # by then the threads have been waited for
        _endings.add(self)

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task soon.

        Raises:
            RuntimeError: it is closed.
        """
        queue = self._queue
        with queue.changed:
            if queue.closed:
                raise RuntimeError("these workers are closed")
            queue.tasks.append(task)
            queue.changed.notify()
            # those that were told and have not woken up still count as idle, and their tasks as waiting
            if len(queue.tasks) <= queue.num_idle or queue.num_threads == self._limit:
                return
            # Started inside the lock, so that a thread counts exactly if it lives: one that cannot be had and counts
            # would be waited for. `start` does not wait for what a thread does first, which is to ask for the lock.
            # No daemon: the interpreter must not go away under a call of obstore's. `_Endings` lets them end in time.
            try:
                threading.Thread(target=queue.serve, name="rankwise-remote").start()
            except RuntimeError:
                if queue.num_threads:  # they take it when they are done
                    return
                queue.tasks.pop()
                raise
            queue.num_threads += 1

    def close(self) -> None:
        """Let the threads end after what they have begun; returns at once."""
        self._end()


def _end(queue: _Queue, on_end: Callable[[], None]) -> None:
    # A forked child drops its copy of a reader, and with it these: nobody serves the queue there, and a thread of the
    # parent may have its lock for ever.
    if os.getpid() != queue.pid:
        return
    on_end()
    queue.close()


class _Endings:
    """Closes what is still open when the main thread ends, else its threads would keep the program alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Workers] = weakref.WeakSet()
        self._watching = self._is_over = False

    def add(self, workers: Workers) -> None:
        with self._lock:
            if self._is_over:  # of another thread of the program: nobody would tell them to end any more
                workers.close()
                return
            self._open.add(workers)
            if not self._watching:
                # exit handlers run too late: the interpreter waits for threads that are no daemons before them
                threading.Thread(target=self._watch, name="rankwise-remote-end", daemon=True).start()
                self._watching = True

    def _watch(self) -> None:
        threading.main_thread().join()
        with self._lock:
            self._is_over = True
            for workers in list(self._open):
                workers.close()


_endings = _Endings()

T = TypeVar("T")


class PendingReads(Generic[T]):
    """The pieces of a fetch as they arrive; thread-safe.

    Args:
        num_pieces: how many are expected.
    """

    def __init__(self, num_pieces: int) -> None:
        self._pieces: list[T | DataError | None] = [None] * num_pieces
        self._arrived: deque[int] = deque()
        self._num_missing = num_pieces
        self._crash: BaseException | None = None
        self._cancelled = False
        self._changed = threading.Condition()

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants what has not arrived."""
        # without the lock: who sees it late sends one request for nothing
        return self._cancelled

    def cancel(self) -> None:
        """Ask for nothing more. Requests that are under way end by themselves; `result` returns at once."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def deliver(self, pieces: Iterable[tuple[int, T | DataError | None]]) -> None:
        """Hand in pieces: (index, what was read, or why nothing was)."""
        with self._changed:
            for index, piece in pieces:
                self._pieces[index] = piece
                self._arrived.append(index)
                self._num_missing -= 1
            self._changed.notify_all()

    def crash(self, error: BaseException) -> None:
        """Hand in an error that is not about any piece: whoever waits gets it."""
        with self._changed:
            self._crash = error
            self._changed.notify_all()

    def result(self) -> list[T | DataError | None]:
        """Wait for all pieces and return them in the order they were asked for.

        Each is what was read, the error that kept it away, or None for an object that does not exist.

        Raises:
            DataError: it was cancelled.
            Exception: anything that is not about one piece.
        """
        # No limit of its own: requests have deadlines, and each task delivers, crashes or sees that it is cancelled. A
        # Ctrl-C ends the wait in the main thread.
        with self._changed:
            self._changed.wait_for(lambda: self._num_missing == 0 or self._ended())
            self._raise_end()
            return list(self._pieces)

    def __iter__(self) -> Iterator[tuple[int, T | DataError | None]]:
        """Yield (index, piece) in the order of arrival, each once; for one consumer.

        Raises:
            DataError: it was cancelled.
            Exception: anything that is not about one piece.
        """
        for _ in range(len(self._pieces)):
            with self._changed:
                self._changed.wait_for(lambda: bool(self._arrived) or self._ended())
                self._raise_end()
                index = self._arrived.popleft()
                piece = self._pieces[index]
            yield index, piece

    def _ended(self) -> bool:
        return self._cancelled or self._crash is not None

    def _raise_end(self) -> None:
        if self._crash is not None:
            raise self._crash
        if self._cancelled and self._num_missing:
            raise DataError("these reads were cancelled before all of them had arrived")
