"""Whether this process is a worker of a torch `DataLoader`, and which load requests are its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass

__all__ = ["LoaderWorker", "current_worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWorker:
    """One of several worker processes.

    Attributes:
        number: which.
        count: how many there are.
        salt: equal in all workers of one epoch of the DataLoader; another in the next epoch.
    """

    number: int
    count: int
    salt: int

    def owns(self, request: int) -> bool:
        """Whether a load request is read by this worker; requests are dealt out in turn."""
        return request % self.count == self.number


def current_worker() -> LoaderWorker | None:
    """Return the worker that this process is, None outside of workers; loads nothing."""
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    if info is None:
        return None
    return LoaderWorker(number=info.id, count=info.num_workers, salt=info.seed - info.id)
