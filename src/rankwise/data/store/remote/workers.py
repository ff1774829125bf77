"""Threads that wait for stores: started when needed, gone when the reader, the program or the work ends."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

__all__ = ["Workers"]


class _Queue:
    """What the threads share; they hold no reference to their `Workers`, so that it can be collected."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[Callable[[], None]] = deque()
        self.num_idle = 0
        self.num_threads = 0
        self.closed = False

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
            if self.tasks:
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
            if len(queue.tasks) <= queue.num_idle or queue.num_threads == self._limit:
                return
            queue.num_threads += 1
        threading.Thread(target=queue.serve, name="rankwise-remote").start()

    def close(self) -> None:
        """Let the threads end after what they have begun; returns at once."""
        self._end()


def _end(queue: _Queue, on_end: Callable[[], None]) -> None:
    on_end()
    queue.close()


class _Endings:
    """Closes what is still open when the main thread ends, else its threads would keep the program alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Workers] = weakref.WeakSet()
        self._watching = False

    def add(self, workers: Workers) -> None:
        with self._lock:
            self._open.add(workers)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="rankwise-remote-end", daemon=True).start()

    def _watch(self) -> None:
        threading.main_thread().join()
        with self._lock:
            for workers in list(self._open):
                workers.close()


_endings = _Endings()
