"""The batch sampler of a `DatasetLoader`: what torch's DataLoader is asked for, and the shares that it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from rankwise.data.contract import Share, sample_keys
from rankwise.data.feed import Cursor

__all__ = ["Requests"]


class Requests:
    """Yields lists of (sample, key), micro-batch by micro-batch, and remembers for which shares.

    A share without samples asks for the step's first sample, so that the collate function shows what a batch looks
    like; the loader cuts it to zero rows. The DataLoader pulls ahead of the training; nothing here moves the state.

    Args:
        cursor: where the loader stands.
    """

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.pulled: deque[Share] = deque()

    def begin(self) -> deque[Share]:
        """Start anew at the cursor; return where the shares of this iteration will queue up."""
        self.pulled = deque()
        return self.pulled

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        pulled, speeds = self.pulled, self._cursor.speeds
        for step in self._cursor.steps():
            for share in self._cursor.shares(step, speeds):
                ids = share.ids if share.num_samples else step.ids[:1]
                keys = sample_keys(step.resume.seed, step.epoch, ids)
                pulled.append(share)
                yield list(zip(ids.tolist(), keys.tolist(), strict=True))
