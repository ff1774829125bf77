"""Places of crops: tiles, or draws by image weight, in blocks of neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray, sample_keys
from rankwise.data.crops.index.cells import BitTable, CellTable
from rankwise.data.crops.index.image import CropImage
from rankwise.data.crops.index.lattice import Lattice, num_blocks, tiles_on_curve
from rankwise.data.crops.index.rules import Weights
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of crops.

    Attributes:
        images: int64[B], number of the image of each crop.
        starts: int64[B, D], its first element along the axes of the reference.
    """

    images: IntArray
    starts: IntArray


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53


def uniform(keys: IntArray, draw: int) -> FloatArray:
    """Return the `draw`-th random number of each key, float64[B], uniform in [0, 1)."""
    return _unit(sample_keys(draw, 0, keys).view(np.uint64))


def below(keys: IntArray, draw: int, limits: IntArray) -> IntArray:
    """Return the `draw`-th random number of each key as an integer below its limit, int64[B]; uniform."""
    return np.minimum((uniform(keys, draw) * limits).astype(np.int64), limits - 1)


def evenly(numbers: IntArray, offset: int) -> FloatArray:
    """Return evenly spread numbers in [0, 1): of any n consecutive integers about n * x get a number below x.

    Multiples of the golden ratio plus an offset (a Weyl sequence).
    """
    turn = np.array([offset & (2**64 - 1)], dtype=np.uint64)
    return _unit(numbers.astype(np.uint64) * _GOLDEN + turn)


def pick(bounds: FloatArray, numbers: FloatArray) -> IntArray:
    """Return the interval of cumulative weights float64[N] for each number in [0, 1), int64[B]."""
    found = np.searchsorted(bounds, numbers * bounds[-1], side="right")
    # rounding may reach the very end; intervals of weight zero are never selected before it
    last = int(np.searchsorted(bounds, bounds[-1], side="left"))
    picked: IntArray = np.minimum(found, last).astype(np.int64)
    return picked


def _unit(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> FloatArray:
    return (words >> np.uint64(11)).astype(np.float64) * _UNIT


# Each use of a crop's key has its own number, so that uses are independent; axes follow at distance 1.
_IMAGE, _CELL, _OWN, _START, _INSIDE, _SPREAD = 1, 2, 3, 100, 200, 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Random crops: crop `n` is a draw keyed by (seed, epoch, n).

    With `neighbourhood` k the crops k*g to k*g + k - 1 share the draw of a region, about 1.5 times as long as a crop
    along each axis, and have random places inside it.

    Attributes:
        num_crops: crops of an epoch.
        lattice: possible starts of crops.
        extent: int64[D], extent of a crop.
        bounds: float64[N], cumulative weights of the images.
        neighbourhood: crops per region.
        redraw: whether each epoch makes new draws.
        allowed: cells that contain the centres of crops; None = anywhere.
        foreground: cells around which crops are drawn.
        foreground_bounds: float64[N], cumulative weights of the images for those.
        fraction: fraction of the regions that is drawn around them.
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
            starts[wanted] = self._around(
                self.foreground, images[wanted], keys[wanted], own[wanted], spread=0.5, hold=True
            )
        return Places(images, starts)

    def _is_foreground(self, groups: IntArray, seed: int, epoch: int) -> BoolArray:
        """Spread evenly over the numbers, so that an epoch has the fraction up to a few crops."""
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
        """Divide each axis into nearly equal intervals of half a crop; draw again inside the interval that was hit.

        An interval is hit in proportion to its length, so all starts stay equally likely.
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

    def _around(
        self, cells: CellTable, images: IntArray, keys: IntArray, own: IntArray, *, spread: float, hold: bool = False
    ) -> IntArray:
        """Return starts of crops around points of cells; a point is at most `spread` / 2 of a crop from its centre.

        On a coarse lattice the nearest start is used: moving it further could lose the point. With `hold` the boxes of
        fields must hold the cell: a box of up to two coarse elements is rounded to them, so its crop is centred on one.
        """
        num_axes = len(self.extent)
        inside = np.stack([uniform(keys, _INSIDE + axis) for axis in range(num_axes)], axis=1)
        off = np.stack([uniform(own, _SPREAD + axis) - 0.5 for axis in range(num_axes)], axis=1)
        tight, size = 4 * self.lattice.step[images] > self.extent, cells.sizes[images]
        if hold:
            tight |= (size > 1) & (3 * size > self.extent)
            inside[tight] = 0.5
        off[tight] = 0.0
        points = cells.points(images, uniform(keys, _CELL), inside)
        wanted = points - self.extent / 2 + off * spread * (self.extent - 1)
        return self.lattice.nearest(images, wanted if hold else np.floor(wanted + 0.5))


def image_weights(images: Sequence[CropImage], weights: Weights | None) -> FloatArray | None:
    """Return the weights of images, float64[N]; None = in proportion to their number of places for crops.

    Raises:
        ConfigError: a weight is missing, negative or not finite.
    """
    if weights is None:
        return None
    if isinstance(weights, str):
        if weights != "equal":
            raise ConfigError(f'weights must be "equal", numbers, or a function of an image; got {weights!r}')
        return np.ones(len(images))
    if isinstance(weights, Mapping):
        missing = [image.name for image in images if image.name not in weights]
        if missing:
            raise ConfigError(f"weights= has none for image {missing[0]!r} and {len(missing) - 1} others")
        found = [float(weights[image.name]) for image in images]
    elif callable(weights):
        found = [float(weights(image)) for image in images]
    else:
        found = list(weights)
    if len(found) != len(images):
        raise ConfigError(f"weights= has {len(found)} numbers for {len(images)} images")
    for image, weight in zip(images, found, strict=True):
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"the weight of image {image.name!r} is {weight}: weights must be finite and at least 0")
    return np.array(found)


def image_bounds(weights: FloatArray | None, amounts: FloatArray, *, what: str) -> FloatArray:
    """Return cumulative weights, float64[N]: of `weights` for images with any amount, or of the amounts themselves.

    Raises:
        ConfigError: they are all zero; the message says `what`.
    """
    chosen = amounts if weights is None else np.where(amounts > 0, weights, 0.0)
    bounds: FloatArray = np.cumsum(chosen)
    if not bounds[-1] > 0:
        raise ConfigError(f"there is nothing to draw crops from: {what}")
    return bounds


# Limits for the decoded bytes of a block: many small crops mix well and still share chunks, few large ones must share.
MIN_REGION_BYTES = 2 << 20
MAX_REGION_BYTES = 64 << 20
_CROPS_PER_REGION = 27
# A smaller gain does not justify a larger block, which mixes less.
_LEAST_GAIN = 0.99


def choose_block(
    *,
    extent: IntArray,
    stride: IntArray,
    chunks: IntArray,
    counts: IntArray,
    element_bytes: float,
    region_bytes: int | None,
) -> IntArray:
    """Return the tiles of a block along each axis, int64[D].

    Starting with one tile, extend the axis where one more row of tiles lowers the decoded elements per tile most,
    until the block exceeds the budget or there is no gain. Tiles that share no chunk stay alone.

    Args:
        extent: int64[D], extent of a tile.
        stride: int64[D], distance between tiles.
        chunks: int64[D], chunk grid.
        counts: int64[D], tiles along each axis of the largest image.
        element_bytes: decoded bytes per element of the reference, over all fields.
        region_bytes: budget; None derives one from the size of a crop.
    """
    budget: float | None = region_bytes
    if budget is None:
        crop_bytes = float(np.prod(extent)) * element_bytes
        budget = float(np.clip(_CROPS_PER_REGION * crop_bytes, MIN_REGION_BYTES, MAX_REGION_BYTES))
    block = np.ones_like(extent)
    decoded = partial(region_elements, extent=extent, stride=stride, chunks=chunks)
    cost = decoded(block)
    while True:
        best = None
        for axis, count in enumerate(counts.tolist()):
            parts = -(-count // int(block[axis]))
            if parts == 1:
                continue
            grown = block.copy()
            grown[axis] = -(-count // (parts - 1))  # divides the axis into one part fewer
            # Axes are divided evenly, so blocks are smaller than the largest one on average.
            mean = counts / -(-counts // grown)
            per_tile = decoded(mean) / float(np.prod(mean))
            if decoded(grown) * element_bytes <= budget and per_tile < cost * _LEAST_GAIN:
                best, cost = grown, per_tile
        if best is None:
            return block
        block = best


def region_elements(block: IntArray | FloatArray, *, extent: IntArray, stride: IntArray, chunks: IntArray) -> float:
    """Return the mean number of elements decoded for a block of tiles, over its possible places.

    Blocks start at multiples of the stride, so at offsets in a chunk that are multiples of a common divisor g of both,
    all equally often: the mean is ceil(length / g) * g plus a chunk minus one g along an axis.
    """
    length = (block - 1) * stride + extent
    divisor = np.gcd(stride, chunks)
    touched = (np.ceil(length / divisor) * divisor + chunks - divisor) / chunks
    return float(np.prod(touched * chunks))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Tiles: crop `n` is the n-th tile along the curves through all images, one after another.

    Attributes:
        lattice: the starts of tiles.
        block: int64[D], tiles of a block of the curve along each axis.
        ends: int64[N], cumulative number of tiles of the images.
        kept: which of all tiles are crops; None = all.
    """

    lattice: Lattice
    block: IntArray
    ends: IntArray
    kept: BitTable | None = None

    @property
    def num_tiles(self) -> int:
        """Number of all tiles, kept or not."""
        return int(self.ends[-1])

    @property
    def num_crops(self) -> int:
        """Number of tiles that are crops."""
        return self.num_tiles if self.kept is None else self.kept.num_set

    @property
    def block_crops(self) -> int:
        """Average number of crops in a block, at least 1."""
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


# Maps numbers of crops to places: a pure function of (seed, epoch, number).
Placement: TypeAlias = Draws | Tiles
