"""Whether this process is a worker of a torch `DataLoader`, and which part of the work is its own."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass

__all__ = ["LoaderWorker", "current_worker", "part_of_worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWorker:
    """One of several worker processes.

    Attributes:
        number: which.
        count: how many there are.
        salt: equal in all workers of one epoch of the DataLoader; another in the next epoch, unless torch's seed was
            set to the same again.
        first: number of the process that the first of these workers is, among all that their parent has started; they
            are started one after the other, so that it is the same for all of them.
    """

    number: int
    count: int
    salt: int
    first: int = 0

    def owns(self, part: int) -> bool:
        """Whether a part of the work is this worker's; parts are dealt out in turn."""
        return part % self.count == self.number


def current_worker() -> LoaderWorker | None:
    """Return the worker that this process is, None outside of workers; loads nothing."""
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    if info is None:
        return None
    started: tuple[int, ...] = getattr(multiprocessing.current_process(), "_identity", ())
    first = started[-1] - info.id if started else 0
    return LoaderWorker(number=info.id, count=info.num_workers, salt=info.seed - info.id, first=first)


def part_of_worker(amount: int) -> int:
    """Return this process's part of something that the workers of a DataLoader share, such as cores; at least 1."""
    worker = current_worker()
    return amount if worker is None else max(1, amount // worker.count)
