"""`MixedDraws`: several collections in one stream, each with its share of every batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray, sample_keys
from rankwise.data.order.lanes import Grid, samples_at
from rankwise.data.rows.drawing.by_weight import RowDraws
from rankwise.data.rows.drawing.interleaving import MOST_POSITIONS, Interleave
from rankwise.errors import ConfigError

__all__ = ["MixedDraws"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedDraws:
    """Collections by share. Implements `Draws`; sample i comes at position i, so an order must leave them as they are.

    Without weights each collection is shown as an order of its own would show it, window by window, and begins again
    when all of it was shown. With weights its rows are drawn.

    Attributes:
        num_samples: samples of an epoch.
        shares: share of each collection.
        edges: int64[P + 1], where the rows of each begin, and the last ends.
        lanes: runs of each collection that are read side by side.
        block_rows: rows of a chunk.
        window: chunks of a run that are mixed with each other.
        draws: how rows are drawn; None = each once.
    """

    num_samples: int
    shares: tuple[float, ...]
    edges: IntArray
    lanes: int
    block_rows: int
    window: int
    draws: RowDraws | None = None

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.edges) - 1:
            raise ConfigError(
                f"mix= wants one share for each of {len(self.edges) - 1} collections, got {list(self.shares)}: pass "
                "the collections as a list"
            )
        if (np.diff(self.edges) == 0).any():
            raise ConfigError("mix= wants rows of every collection: one of them has none left")
        Interleave(self.shares, self.lanes)  # refuses bad shares now
        if self.num_samples > MOST_POSITIONS:
            raise ConfigError(f"an epoch of a mix has at most {MOST_POSITIONS} samples, got {self.num_samples}")

    @property
    def together(self) -> int:
        """Without meaning: samples come in an order of their own."""
        return 1

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the samples."""
        grid = (self.lanes, self.block_rows, self.window)
        drawn = None if self.draws is None else self.draws.fingerprint
        facts = (self.num_samples, self.shares, self.edges.tolist(), grid, drawn)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]."""
        words = sample_keys(seed, epoch, -1 - np.arange(len(self.edges), dtype=np.int64)).tolist()
        parts, numbers = Interleave(self.shares, self.lanes).find(ids, words[-1] & 0xFFFFFFFF)
        rows = np.empty(len(ids), dtype=np.int64)
        for part in np.unique(parts).tolist():
            members = parts == part
            first, last = int(self.edges[part]), int(self.edges[part + 1])
            if self.draws is not None:
                own, groups = ids[members], self._groups(numbers[members]) * len(self.shares) + part
                rows[members] = self.draws.rows_of(own, groups, seed=seed, epoch=epoch, first=first, last=last)
            else:
                rows[members] = first + self._passes(numbers[members], last - first, words[part])
        return rows

    def _groups(self, numbers: IntArray) -> IntArray:
        """Samples of a part that share a block: neighbours in their lane."""
        assert self.draws is not None
        return numbers // self.lanes // self.draws.together * self.lanes + numbers % self.lanes

    def _passes(self, numbers: IntArray, num_rows: int, seed: int) -> IntArray:
        """Rows of one collection, pass after pass over all of it, each in another order."""
        chunk = min(self.block_rows, num_rows)
        window = max(1, min(self.window, -(-num_rows // chunk)))
        grid = Grid(num_samples=num_rows, chunk_samples=chunk, lanes=min(self.lanes, num_rows), window=window)
        which, places = numbers // num_rows, numbers % num_rows
        rows = np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(which).tolist():
            rows[which == number] = samples_at(grid, seed, number, places[which == number])
        return rows
