"""Threads that wait for stores, and fetches in progress."""

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
    """State shared by the threads; they hold no reference to their `Workers`, so that it can be garbage collected."""

    def __init__(self) -> None:
        # This kind of `Condition` is reentrant, and must be: garbage collection in a thread that holds it may destroy
        # these `Workers`, which closes the queue.
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
            del task  # it holds the bytes that it read

    def _next(self) -> Callable[[], None] | None:
        with self.changed:
            self.num_idle += 1
            self.changed.wait_for(lambda: bool(self.tasks) or self.closed)
            self.num_idle -= 1
            if self.tasks:  # checked before the end: tasks that wait at closing still run
                return self.tasks.popleft()
            self.num_threads -= 1
            return None


class Workers:
    """Runs tasks on up to `limit` threads, in order of submission.

    Tasks handle their own errors. Tasks that wait at closing still run (and must check whether their result is still
    wanted), so no caller waits for a task in vain.

    Args:
        limit: most threads.
        on_end: called when it is closed or collected, or when the main thread has ended; use it to wake threads
            that wait inside a task.
    """

    def __init__(self, limit: int, *, on_end: Callable[[], None]) -> None:
        self._limit = limit
        self._queue = _Queue()
        self._end = weakref.finalize(self, _end, self._queue, on_end)
        self._end.atexit = False  # the threads have been joined by then
        _exit_hooks.add(self)

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task.

        Raises:
            RuntimeError: it is closed.
        """
        queue = self._queue
        with queue.changed:
            if queue.closed:
                raise RuntimeError("these workers are closed")
            queue.tasks.append(task)
            queue.changed.notify()
            # notified threads that have not woken yet still count as idle, and their tasks as waiting
            if len(queue.tasks) <= queue.num_idle or queue.num_threads == self._limit:
                return
            # Started inside the lock, so that a thread counts exactly if it lives; otherwise others would wait for one
            # that failed to start. `start` does not wait for the thread's first step, which is to take the lock. Not a
            # daemon: the interpreter must not exit during a call of obstore. `_ExitHooks` ends the threads in time.
            try:
                threading.Thread(target=queue.serve, name="rankwise-remote").start()
            except RuntimeError:
                if queue.num_threads:  # existing threads take it when they are done
                    return
                queue.tasks.pop()
                raise
            queue.num_threads += 1

    def close(self) -> None:
        """Let the threads end after their current tasks; returns at once."""
        self._end()


def _end(queue: _Queue, on_end: Callable[[], None]) -> None:
    # A forked child drops its copy of a reader, and with it these: no thread serves the queue there, and a thread of
    # the parent may hold its lock for ever.
    if os.getpid() != queue.pid:
        return
    on_end()
    queue.close()


class _ExitHooks:
    """Closes all open workers when the main thread ends; otherwise their threads would keep the program alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Workers] = weakref.WeakSet()
        self._watching = self._is_over = False

    def add(self, workers: Workers) -> None:
        with self._lock:
            if self._is_over:  # from another thread: nothing else would end them
                workers.close()
                return
            self._open.add(workers)
            if not self._watching:
                # exit handlers run too late: the interpreter joins non-daemon threads before them
                threading.Thread(target=self._watch, name="rankwise-remote-end", daemon=True).start()
                self._watching = True

    def _watch(self) -> None:
        threading.main_thread().join()
        with self._lock:
            self._is_over = True
            for workers in list(self._open):
                workers.close()


_exit_hooks = _ExitHooks()

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
        """Whether the pieces that have not arrived are no longer wanted."""
        # without the lock: a late reader sends one request in vain
        return self._cancelled

    def cancel(self) -> None:
        """Send no more requests. Those in flight end by themselves; `result` returns at once."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def deliver(self, pieces: Iterable[tuple[int, T | DataError | None]]) -> None:
        """Add pieces: (index, bytes or error)."""
        with self._changed:
            for index, piece in pieces:
                self._pieces[index] = piece
                self._arrived.append(index)
                self._num_missing -= 1
            self._changed.notify_all()

    def crash(self, error: BaseException) -> None:
        """Add an error that does not belong to a piece: every waiting caller gets it."""
        with self._changed:
            self._crash = error
            self._changed.notify_all()

    def result(self) -> list[T | DataError | None]:
        """Wait for all pieces and return them in the requested order.

        Each is the bytes read, an error, or None for an object that does not exist.

        Raises:
            DataError: it was cancelled.
            Exception: an error that does not belong to one piece.
        """
        # No timeout here: requests have deadlines, and each task delivers, crashes or sees that it is cancelled. A
        # Ctrl-C ends the wait in the main thread.
        with self._changed:
            self._changed.wait_for(lambda: self._num_missing == 0 or self._ended())
            self._raise_end()
            return list(self._pieces)

    def __iter__(self) -> Iterator[tuple[int, T | DataError | None]]:
        """Yield (index, piece) in the order of arrival, each once; for one consumer.

        Raises:
            DataError: it was cancelled.
            Exception: an error that does not belong to one piece.
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
