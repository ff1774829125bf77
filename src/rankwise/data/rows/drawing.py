"""Rows drawn by weight: which row a sample is, as a pure function of (seed, epoch, sample)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, sample_keys
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

__all__ = ["RowDraws", "balanced_weights", "checked_weights"]

# Each use of a key has its own number, so that they do not depend on each other.
_BLOCK, _ROW = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowDraws:
    """Draws with replacement, anew in each epoch, without a generator that would have to be replayed.

    With `together` k the samples k*g to k*g + k - 1 come from one block of neighbouring rows. A block is drawn by the
    weight of its rows and a row inside it by its own, so that each row is as likely as its weight says for any k.

    Attributes:
        num_samples: draws of an epoch.
        bounds: float64[rows], cumulative weights.
        together: samples that share a block.
        block_rows: rows of a block.

    Raises:
        ConfigError: `num_samples` or `together` is below 1.
    """

    num_samples: int
    bounds: FloatArray
    together: int
    block_rows: int

    def __post_init__(self) -> None:
        for name in ("num_samples", "together"):
            if getattr(self, name) < 1:
                raise ConfigError(f"draws want {name} of at least 1, got {getattr(self, name)}")

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]."""
        if self.together == 1:
            return self._pick(_uniform(sample_keys(seed, epoch, ids), _ROW) * self.bounds[-1])
        blocks = self._blocks(_uniform(sample_keys(seed, epoch, ids // self.together), _BLOCK))
        low, high = self._edge(blocks), self._edge(blocks + 1)
        inside = low + _uniform(sample_keys(seed, epoch, ids), _ROW) * (high - low)
        return np.minimum(self._pick(np.minimum(inside, np.nextafter(high, 0.0))), len(self.bounds) - 1)

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the draws."""
        facts = (self.num_samples, self.together, self.block_rows)
        return hashlib.sha256(repr(facts).encode() + self.bounds.tobytes()).hexdigest()[:16]

    def _blocks(self, numbers: FloatArray) -> IntArray:
        return self._pick(numbers * self.bounds[-1]) // self.block_rows

    def _edge(self, blocks: IntArray) -> FloatArray:
        """Cumulative weight before a block."""
        last = np.minimum(blocks * self.block_rows, len(self.bounds)) - 1
        edges: FloatArray = np.where(last >= 0, self.bounds[last], 0.0)
        return edges

    def _pick(self, weights: FloatArray) -> IntArray:
        """The rows into whose stretch of the cumulative weights numbers fall; those of weight zero have none."""
        rows = np.searchsorted(self.bounds, weights, side="right")
        last = int(np.searchsorted(self.bounds, self.bounds[-1], side="left"))  # rounding may reach the very end
        return np.minimum(rows, last).astype(np.int64)


def balanced_weights(groups: RowGroups) -> FloatArray:
    """Return weights, float64[N], with which every group that has rows is as likely; rows of no group have none.

    Raises:
        ConfigError: no row belongs to a group.
    """
    counts = np.bincount(groups.codes[groups.codes >= 0], minlength=len(groups.labels))
    if not counts.any():
        raise ConfigError("no row has a value in the column to balance by: choose another column")
    each = np.zeros(len(counts) + 1)
    each[:-1][counts > 0] = 1.0 / counts[counts > 0]
    weights: FloatArray = each[groups.codes]  # the last entry, 0, is that of code -1
    return weights


def checked_weights(weights: Any, num_rows: int) -> FloatArray:
    """Return weights as float64[num_rows].

    Raises:
        ConfigError: they are of another length, negative, not finite, or all zero.
    """
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (num_rows,):
        raise ConfigError(f"weights= wants one number for each of {num_rows} rows, got the shape {list(found.shape)}")
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ConfigError("weights= wants finite numbers of at least 0, and one above it at least")
    return found


def _uniform(keys: IntArray, draw: int) -> FloatArray:
    """The `draw`-th number of each key, uniform in [0, 1)."""
    words = sample_keys(draw, 0, keys).view(np.uint64) >> np.uint64(11)
    numbers: FloatArray = words.astype(np.float64) * 2.0**-53
    return numbers
