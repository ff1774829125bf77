"""Random crops: each is drawn anew from (seed, epoch, number), without a generator that would have to be replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray, sample_keys
from rankwise.data.crops.index.cells import CellTable
from rankwise.data.crops.index.lattice import Lattice
from rankwise.data.crops.index.placing import Places
from rankwise.data.crops.index.words import below, evenly, pick, uniform

__all__ = ["Draws"]

# Each use of a crop's key has its own number, so that they do not depend on each other; axes follow at distance 1.
_IMAGE, _CELL, _OWN, _START, _INSIDE, _SPREAD = 1, 2, 3, 100, 200, 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Implements `Placement`: crop `n` is a draw keyed by (seed, epoch, n).

    With `neighbourhood` k the crops k*g to k*g + k - 1 share the draw of a region, about half as long again as a crop
    along each axis, and lie at random inside it.

    Attributes:
        num_crops: crops of an epoch.
        lattice: where crops may start.
        extent: int64[D], extent of a crop.
        bounds: float64[N], cumulative weights of the images.
        neighbourhood: crops of a region.
        redraw: whether each epoch draws anew.
        allowed: cells in which the centres of crops lie; None = anywhere.
        foreground: cells around which crops are drawn.
        foreground_bounds: float64[N], cumulative weights of the images for those.
        fraction: which share of the regions is drawn around them.
    """

    num_crops: int
    lattice: Lattice
    extent: IntArray
    bounds: FloatArray
    neighbourhood: int = 1
    redraw: bool = True
    allowed: CellTable | None = None
    foreground: CellTable | None = None
    foreground_bounds: FloatArray | None = None
    fraction: float = 0.0

    def places(self, ids: IntArray, *, seed: int, epoch: int) -> Places:
        """Return the places of crops of an epoch."""
        epoch = epoch if self.redraw else 0
        groups = ids // self.neighbourhood
        keys = sample_keys(seed, epoch, groups)
        own = sample_keys(_OWN, 0, sample_keys(seed, epoch, ids))
        wanted = self._is_foreground(groups, seed, epoch)
        images = pick(self.bounds, uniform(keys, _IMAGE))
        starts = self._starts(images, keys, own)
        if wanted.any():
            assert self.foreground is not None
            assert self.foreground_bounds is not None
            images[wanted] = pick(self.foreground_bounds, uniform(keys[wanted], _IMAGE))
            starts[wanted] = self._around(self.foreground, images[wanted], keys[wanted], own[wanted], spread=0.5)
        return Places(images, starts)

    def _is_foreground(self, groups: IntArray, seed: int, epoch: int) -> BoolArray:
        """Spread evenly over the numbers, so that an epoch holds the fraction within a few crops."""
        if self.foreground is None or self.fraction <= 0:
            return np.zeros(len(groups), dtype=np.bool_)
        offset = int(sample_keys(seed, epoch, np.array([-1], dtype=np.int64))[0])
        return np.asarray(evenly(groups, offset) < self.fraction, dtype=np.bool_)

    def _starts(self, images: IntArray, keys: IntArray, own: IntArray) -> IntArray:
        if self.allowed is not None:
            return self._around(self.allowed, images, keys, own, spread=0.5 if self.neighbourhood > 1 else 0.0)
        counts = self.lattice.counts[images]
        coords = np.empty_like(counts)
        for axis in range(counts.shape[1]):
            coords[:, axis] = below(keys, _START + axis, counts[:, axis])
        if self.neighbourhood > 1:
            coords = self._inside_regions(images, coords, own)
        return self.lattice.starts(images, coords)

    def _inside_regions(self, images: IntArray, coords: IntArray, own: IntArray) -> IntArray:
        """Cut each axis into nearly equal stretches of half a crop; draw anew inside the stretch that was hit.

        A stretch is hit as often as it is long, so that all starts stay equally likely.
        """
        moved, counts = np.empty_like(coords), self.lattice.counts[images]
        stretch = np.maximum(1, self.extent // 2 // self.lattice.step[images])
        for axis in range(coords.shape[1]):
            count = counts[:, axis]
            parts = -(-count // stretch[:, axis])
            part = ((coords[:, axis] + 1) * parts - 1) // count
            low, high = part * count // parts, (part + 1) * count // parts
            moved[:, axis] = low + below(own, _START + axis, high - low)
        return moved

    def _around(self, cells: CellTable, images: IntArray, keys: IntArray, own: IntArray, *, spread: float) -> IntArray:
        """Return starts of crops around points of cells, the points at most `spread` / 2 of a crop off its centre.

        On a coarse lattice they are next to the centre: moving them further could take the crop off its point.
        """
        num_axes = len(self.extent)
        inside = np.stack([uniform(keys, _INSIDE + axis) for axis in range(num_axes)], axis=1)
        points = cells.points(images, uniform(keys, _CELL), inside)
        off = np.stack([uniform(own, _SPREAD + axis) - 0.5 for axis in range(num_axes)], axis=1)
        off[4 * self.lattice.step[images] > self.extent] = 0.0
        wanted = np.floor(points - self.extent / 2 + off * spread * (self.extent - 1) + 0.5).astype(np.int64)
        return self.lattice.nearest(images, wanted)
