"""`SerialWorker`: tasks in the background, one after the other, by a thread that ends when there are none."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["SerialWorker"]

T = TypeVar("T")


class SerialWorker:
    """Like an executor with one thread, which nobody has to shut down; the interpreter waits for it at its exit."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], None]] = deque()
        self._is_running = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` called after all that was submitted before; return what it will return."""
        future: Future[T] = Future()
        with self._lock:
            self._tasks.append(lambda: _do(work, future))
            idle, self._is_running = not self._is_running, True
        if idle:
            self._start()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="rankwise-rows").start()
        except RuntimeError:  # the program is ending, or may have no more threads: the calling one can do it
            self._run()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            task()
            del task  # and what it holds

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._is_running = bool(self._tasks)
            return self._tasks.popleft() if self._tasks else None


def _do(work: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
        future.set_exception(error)
