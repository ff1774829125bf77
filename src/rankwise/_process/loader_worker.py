"""Find out whether this process is a worker of a torch `DataLoader`, and its share of the work."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWorker:
    """One of several worker processes.

    Attributes:
        number: number of this worker.
        count: number of workers.
        salt: equal in all workers of one epoch of the DataLoader; different in the next epoch, unless torch is seeded
            with the same value again.
        first: process number of the first of these workers, counted over all children of their parent; workers are
            started one after the other, so all compute the same number.
    """

    number: int
    count: int
    salt: int
    first: int = 0

    def owns(self, part: int) -> bool:
        """Whether a part of the work belongs to this worker; parts are assigned round-robin."""
        return part % self.count == self.number


def current_worker() -> LoaderWorker | None:
    """Return this process's worker data, None outside workers; imports nothing."""
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    if info is None:
        return None
    started: tuple[int, ...] = getattr(multiprocessing.current_process(), "_identity", ())
    first = started[-1] - info.id if started else 0
    return LoaderWorker(number=info.id, count=info.num_workers, salt=info.seed - info.id, first=first)


def part_of_worker(amount: int) -> int:
    """Return this process's share of something that DataLoader workers share, such as cores; at least 1."""
    worker = current_worker()
    return amount if worker is None else max(1, amount // worker.count)
