"""`RowDraws`: rows drawn by weight, with replacement."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, sample_keys
from rankwise.data.order import place_of_samples
from rankwise.data.rows.drawing.weights import RowWeights

__all__ = ["RowDraws"]

# Each use of a key has its own number, so that they do not depend on each other.
_BLOCK, _ROW = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowDraws:
    """Draws anew in each epoch, without a generator that would have to be replayed. Implements `Draws`.

    With `together` k the samples k*g to k*g + k - 1 come from one block of neighbouring rows. A block is drawn by the
    weight of its rows and a row inside it by its own, so that each row is as likely as its weight says for any k.

    Attributes:
        num_samples: draws of an epoch.
        weights: how likely each row is.
        together: samples that share a block.
        block_rows: rows of a block.
    """

    num_samples: int
    weights: RowWeights
    together: int = 1
    block_rows: int = 1

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the draws."""
        facts = (self.num_samples, self.together, self.block_rows if self.together > 1 else 0, self.weights.fingerprint)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]."""
        return self.rows_of(ids, ids // self.together, seed=seed, epoch=epoch)

    def rows_of(
        self, ids: IntArray, groups: IntArray, *, seed: int, epoch: int, first: int = 0, last: int | None = None
    ) -> IntArray:
        """Return rows of samples whose groups share a block, all of them from some of the rows.

        Args:
            ids: int64[B], numbers of samples.
            groups: int64[B], without meaning where a group is one sample.
            seed: seed of the order.
            epoch: epoch.
            first: the first row that may come.
            last: the one after the last; None = the end.
        """
        edges = np.array([first, len(self.weights) if last is None else last])
        low, high = self.weights.before(edges)
        own = place_of_samples(sample_keys(seed, epoch, ids), _ROW)
        if self.together == 1:
            return self._between(low, high, own)
        groups, member = np.unique(groups, return_inverse=True)
        of_group = place_of_samples(sample_keys(seed, epoch, groups), _BLOCK)
        drawn = self._between(low, high, of_group) // self.block_rows
        starts = self.weights.before(np.clip(drawn * self.block_rows, *edges))
        ends = self.weights.before(np.clip((drawn + 1) * self.block_rows, *edges))
        return self._between(starts[member], ends[member], own)

    def _between(self, low: FloatArray, high: FloatArray, numbers: FloatArray) -> IntArray:
        """The rows at these fractions of the way between two sums of weights."""
        return self.weights.pick(np.minimum(low + numbers * (high - low), np.nextafter(high, 0.0)))
