"""Threads that read and decode: how many, and a small pool in which the caller works too."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from rankwise._process.cores import cpu_mask, usable_cores
from rankwise._process.loader_worker import part_of_worker
from rankwise._process.place import num_local_ranks

__all__ = ["WorkCrew", "reading_threads"]

_PART = "RANKWISE_CORES"


def reading_threads() -> int:
    """Return how many threads this rank reads with: its fair part of the cores that it may use, at least 1.

    A rank of `rankwise run` is told its part, which goes with its binding. Elsewhere, cores that the ranks of a machine
    share are divided among them; a rank that was bound to cores of its own has those.
    """
    mask = len(cpu_mask())
    told = os.environ.get(_PART, "")
    if told.isdigit() and int(told) > 0:
        return min(int(told), usable_cores(mask))
    ranks = num_local_ranks(os.environ)
    has_its_own = mask * ranks <= (os.cpu_count() or 1)
    return max(1, usable_cores(mask) // (1 if has_its_own else ranks))


class WorkCrew:
    """Runs tasks on `num_threads` threads, the calling one among them.

    The threads are started with the first work that is worth them, and end with `close` or the interpreter.

    Args:
        num_threads: of this process, or of all workers of a DataLoader together.
        shared: whether workers of a DataLoader have them together; this is asked when there is work to do, as a worker
            has its copy before it knows that it is one.
    """

    def __init__(self, num_threads: int, *, shared: bool = False) -> None:
        self._num_threads, self._shared = num_threads, shared
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()  # for the pool: `close` must not end one that is about to be given work

    @property
    def num_threads(self) -> int:
        """Threads of this process."""
        return part_of_worker(self._num_threads) if self._shared else self._num_threads

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Run all tasks, in order of their start; the first error stops what has not begun and is raised."""
        waiting = deque(tasks)  # taken from its left end in one step for all threads: no task runs twice
        helpers: list[Future[None]] = []
        try:
            self._call(helpers, waiting)
            _work(waiting)
        except BaseException:
            waiting.clear()
            raise
        finally:
            # Also after an error or a Ctrl-C: what helpers write into is given back to somebody by who called.
            errors = _ended(helpers, waiting)
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Let the threads go."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)  # outside the lock: runs of other threads go on, with a new pool

    def _call(self, helpers: list[Future[None]], waiting: deque[Callable[[], None]]) -> None:
        """Have the other threads help."""
        for _ in range(min(self.num_threads, len(waiting)) - 1):
            # Our own future, not that of the pool: `submit` puts the work in line before it fails to start a thread for
            # it, and a thread that is there may take it. Who waits for all helpers must know of that one, too.
            helper: Future[None] = Future()
            helpers.append(helper)
            with self._lock:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self.num_threads - 1, thread_name_prefix="rankwise-decoder")
                try:
                    self._pool.submit(_help, helper, waiting)
                except RuntimeError:  # the program is ending, or may have no more threads: the calling one can do it
                    return


def _ended(helpers: list[Future[None]], waiting: deque[Callable[[], None]]) -> list[BaseException | None]:
    """Wait until nothing is written any more; return what the helpers raised.

    Interrupted here, what has begun ends and the rest does not begin; interrupted again, it is left alone.
    """
    try:
        return [_outcome(helper) for helper in helpers]
    except BaseException:
        waiting.clear()
        for helper in helpers:
            _outcome(helper)
        raise


def _outcome(helper: Future[None]) -> BaseException | None:
    """Wait for a helper; one that has not begun, because others keep the threads busy, is not needed any more."""
    return None if helper.cancel() else helper.exception()


def _help(helper: Future[None], waiting: deque[Callable[[], None]]) -> None:
    if not helper.set_running_or_notify_cancel():
        return
    try:
        _work(waiting)
    except BaseException as error:  # noqa: BLE001  (raised again by who called for help)
        helper.set_exception(error)
        del helper  # else the error keeps this frame, and the frame the error
    else:
        helper.set_result(None)


def _work(waiting: deque[Callable[[], None]]) -> None:
    # No thread works off a share of its own: one that the system puts aside holds up no more than the task it has.
    try:
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            task()
    except BaseException:
        waiting.clear()
        raise
