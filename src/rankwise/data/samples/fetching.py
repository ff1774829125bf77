"""`Fetching`: what torch's DataLoader was asked for, and where the shares that it answers queue up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rankwise.data.contract import Share
from rankwise.data.feed import Cursor
from rankwise.data.samples.requests import Requests

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["Fetching"]


class Fetching:
    """One iteration of a DataLoader, from where the loader stands; with workers they begin at once.

    Args:
        loader: torch's.
        requests: its batch sampler.
        cursor: where the loader stands.

    Attributes:
        batches: what comes.
        pulled: the share of each batch, added when the batch is asked for.
    """

    def __init__(self, loader: DataLoader[Any], requests: Requests, cursor: Cursor) -> None:
        self._loader, self._cursor = loader, cursor
        self._begun_at = cursor.order, cursor.done, cursor.speeds
        self._random = loader.generator.get_state()
        self.pulled: deque[Share] = requests.begin()
        self.batches: Iterator[Any] = iter(loader)

    @property
    def is_next(self) -> bool:
        """Whether the loader stands where this began."""
        order, done, speeds = self._begun_at
        return order is self._cursor.order and (done, speeds) == (self._cursor.done, self._cursor.speeds)

    def drop(self) -> None:
        """Make it as if this had not been: the workers' seeds, and those of an order of torch's, are drawn again."""
        self.batches = iter(())
        self._loader.generator.set_state(self._random)
