"""`ShareView`: what every batch knows from its share alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, OrderState, Share, sample_keys

__all__ = ["ShareView"]


class ShareView:
    """The half of the contract's `Batch` that follows from the share; batches add the data.

    Args:
        share: which samples the batch holds: those that arrived.
        num_lost: real samples that should have been among them, but were damaged and left out.
        may_skip: whether batches of this loader may lack samples, on this or any other rank.
    """

    def __init__(self, share: Share, *, num_lost: int = 0, may_skip: bool = False) -> None:
        self._share = share
        self._num_lost = num_lost
        self._may_skip = may_skip

    @property
    def share(self) -> Share:
        """Which samples it holds."""
        return self._share

    @property
    def ids(self) -> IntArray:
        """int64[B]: sample ids, padding included."""
        return self._share.ids

    @property
    def key(self) -> IntArray:
        """int64[B]: f(seed, epoch, sample), the same at any world size and after any restart."""
        step = self._share.step
        return sample_keys(step.resume.seed, step.epoch, self._share.ids)

    @property
    def count(self) -> int:
        """Real samples that arrived: neither padding nor skipped."""
        share = self._share
        return len(share.ids) if share.weights is None else int(np.count_nonzero(share.weights))

    @property
    def weights(self) -> Any:
        """float32[B]: 1 for each sample, 0 for padding."""
        weights = self._share.weights
        return np.ones(len(self.ids), np.float32) if weights is None else weights.astype(np.float32)

    @property
    def num_lost(self) -> int:
        """Real samples of this rank's share that were damaged and are not in the batch."""
        return self._num_lost

    @property
    def may_skip(self) -> bool:
        """Whether batches may lack samples, so that only the ranks together know how many a step has."""
        return self._may_skip

    @property
    def resume(self) -> OrderState:
        """The state after the step that this batch belongs to."""
        return self._share.step.resume

    def __len__(self) -> int:
        """Number of samples, padding included."""
        return len(self.ids)

    def _described(self, what: str) -> str:
        step, share = self._share.step, self._share
        return (
            f"{type(self).__name__}(epoch={step.epoch}, step={step.index}, micro={share.micro}/{share.num_micro}, "
            f"samples={len(self.ids)}: {what})"
        )
