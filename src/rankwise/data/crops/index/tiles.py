"""Crops on a grid: every tile of every image once, numbered so that neighbours share chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.index.bits import BitTable
from rankwise.data.crops.index.curve import num_blocks, tiles_on_curve
from rankwise.data.crops.index.lattice import Lattice
from rankwise.data.crops.index.placing import Places

__all__ = ["Tiles"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Implements `Placement`: crop `n` is the n-th tile along the curves through the images, one after the other.

    Attributes:
        lattice: the starts of tiles.
        block: int64[D], tiles of a block of the curve along each axis.
        ends: int64[N], tiles of the images up to and with each one.
        kept: which of all tiles are crops; None = all.
    """

    lattice: Lattice
    block: IntArray
    ends: IntArray
    kept: BitTable | None = None

    @classmethod
    def over(cls, lattice: Lattice, *, block: IntArray) -> Self:
        """Return all tiles of a lattice."""
        return cls(lattice=lattice, block=block, ends=np.cumsum(lattice.totals()))

    @property
    def num_tiles(self) -> int:
        """All tiles, kept or not."""
        return int(self.ends[-1])

    @property
    def num_crops(self) -> int:
        """Tiles that are crops."""
        return self.num_tiles if self.kept is None else self.kept.num_set

    @property
    def block_crops(self) -> int:
        """Crops of a block, on average and at least 1."""
        used = self.lattice.counts[self.lattice.totals() > 0]
        return max(1, round(self.num_crops / max(1, num_blocks(used, self.block))))

    def places(self, ids: IntArray, *, seed: int, epoch: int) -> Places:  # noqa: ARG002  (tiles do not move)
        """Return the places of tiles; the same in every epoch."""
        return self.tile_places(ids if self.kept is None else self.kept.select(ids))

    def tile_places(self, tiles: IntArray) -> Places:
        """Return the places of tiles by their number among all tiles."""
        images = np.searchsorted(self.ends, tiles, side="right").astype(np.int64)
        counts = self.lattice.counts[images]
        before = self.ends[images] - np.prod(counts, axis=1, dtype=np.int64)
        coords = tiles_on_curve(tiles - before, counts, self.block)
        return Places(images, self.lattice.starts(images, coords))
