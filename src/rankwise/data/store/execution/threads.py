"""Threads that read and decode: their number, a small pool in which the caller also works, and their shares."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from rankwise._process.cores import cpu_mask, usable_cores
from rankwise._process.loader_worker import part_of_worker
from rankwise._process.place import num_local_ranks
from rankwise.data.contract import IntArray

_PART = "RANKWISE_CORES"


def reading_threads() -> int:
    """Return the number of reading threads of this rank: its fair share of the cores that it may use, at least 1.

    `rankwise run` tells a rank its share together with its core binding. Without it, ranks that share the cores of a
    machine divide them; a rank that is bound to its own cores uses those.
    """
    mask = len(cpu_mask())
    told = os.environ.get(_PART, "")
    if told.isdecimal() and int(told) > 0:
        return min(int(told), usable_cores(mask))
    ranks = num_local_ranks(os.environ)
    has_its_own = mask * ranks <= (os.cpu_count() or 1)
    return max(1, usable_cores(mask) // (1 if has_its_own else ranks))


class WorkCrew:
    """Runs tasks on `num_threads` threads, including the calling one.

    Threads start with the first work that is large enough, and end with `close` or the interpreter.

    Args:
        num_threads: of this process, or of all workers of a DataLoader together.
        shared: whether workers of a DataLoader share them; this is checked when there is work, because a worker
            receives its copy before it knows that it is a worker.
    """

    def __init__(self, num_threads: int, *, shared: bool = False) -> None:
        self._num_threads, self._shared = num_threads, shared
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()  # for the pool: `close` must not end one that is about to get work

    @property
    def num_threads(self) -> int:
        """Number of threads of this process."""
        return part_of_worker(self._num_threads) if self._shared else self._num_threads

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Run all tasks, starting them in order; the first error cancels tasks that have not begun and is raised."""
        waiting = deque(tasks)  # popleft is atomic: no task runs twice
        helpers: list[Future[None]] = []
        try:
            self._call(helpers, waiting)
            _work(waiting)
        except BaseException:
            waiting.clear()
            raise
        finally:
            # Also after an error or a Ctrl-C: the caller will reuse the memory that helpers write to.
            errors = _ended(helpers, waiting)
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)  # outside the lock: runs of other threads continue, with a new pool

    def _call(self, helpers: list[Future[None]], waiting: deque[Callable[[], None]]) -> None:
        """Start the other threads as helpers."""
        for _ in range(min(self.num_threads, len(waiting)) - 1):
            # Our own future, not the pool's: `submit` queues the work before it fails to start a thread for it, and an
            # existing thread may take it. The caller must wait for that helper, too.
            helper: Future[None] = Future()
            helpers.append(helper)
            with self._lock:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self.num_threads - 1, thread_name_prefix="rankwise-decoder")
                try:
                    self._pool.submit(_help, helper, waiting)
                except RuntimeError:  # the interpreter exits, or no thread can start: the calling thread works alone
                    return


def _ended(helpers: list[Future[None]], waiting: deque[Callable[[], None]]) -> list[BaseException | None]:
    """Wait until no helper writes any more; return the errors of the helpers.

    If interrupted here, running tasks finish and the others do not begin; if interrupted again, stop waiting.
    """
    try:
        return [_outcome(helper) for helper in helpers]
    except BaseException:
        waiting.clear()
        for helper in helpers:
            _outcome(helper)
        raise


def _outcome(helper: Future[None]) -> BaseException | None:
    """Wait for a helper; cancel one that has not begun, because other runs keep the threads busy."""
    return None if helper.cancel() else helper.exception()


def _help(helper: Future[None], waiting: deque[Callable[[], None]]) -> None:
    if not helper.set_running_or_notify_cancel():
        return
    try:
        _work(waiting)
    except BaseException as error:  # noqa: BLE001  (raised again by who called for help)
        waiting.clear()
        helper.set_exception(error)
        del helper  # else the error keeps this frame alive, and the frame the error
    else:
        helper.set_result(None)


def _work(waiting: deque[Callable[[], None]]) -> None:
    # Threads have no fixed share: a thread that the system suspends delays only its current task.
    while waiting:
        try:
            task = waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        task()


_SLAB_BYTES = 16 * 2**20  # decoded; some ten milliseconds, after which an interrupt is handled
_GOOD_BYTES = 16 * 2**20  # processing these takes so long that the cost of a task does not matter
_FEW, _MANY = 2, 4  # slabs of a thread, at least and at most, for an even distribution
_WORTH_BYTES = 2**18  # processing these takes about as long as handing out a task


def cut_slabs(
    file: IntArray, chunk_bytes: int, num_threads: int, *, work_bytes: int, most_files: int = 2**31
) -> list[tuple[int, int]]:
    """Return runs ``first:last`` of chunks, each for one thread at a time, in the order in which threads take them.

    The chunks of a file stay in order. If several files are long, their runs alternate: on network file systems, reads
    of one file wait for each other, but reads of several files do not.

    Args:
        file: int64[K], the file of each chunk, ascending.
        chunk_bytes: bytes of a decoded chunk.
        num_threads: threads that will take them.
        work_bytes: approximate number of bytes to process; for few bytes more threads do not help.
        most_files: most files of a run.
    """
    parts = max(
        1, min(_FEW * num_threads, work_bytes // _WORTH_BYTES), min(_MANY * num_threads, work_bytes // _GOOD_BYTES)
    )
    if num_threads == 1:  # a single thread needs no division
        parts = 1
    fair = -(-len(file) // parts)
    most = max(1, min(fair, _SLAB_BYTES // max(1, chunk_bytes)))
    slabs: list[tuple[int, int, int]] = []
    edges = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist(), len(file)]
    if len(edges) - 1 > most_files:
        most = min(most, most_files)
    begin = 0
    for edge in edges[1:]:
        if edge - begin < most and edge != len(file):
            continue  # short files share a slab
        slabs += [(turn, first, min(first + most, edge)) for turn, first in enumerate(range(begin, edge, most))]
        begin = edge
    return [(first, last) for _, first, last in sorted(slabs)]
