"""Grids of crops: a lattice, and the curve that visits it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray
from rankwise.errors import ConfigError

Edges: TypeAlias = Literal["shift", "pad", "drop"]

_MOST_PERIOD = 256
_NEAR = 1e-4  # of an element: spacings are written with few digits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lattice:
    """Starts for N images along D axes: ``min(origin + coordinate * step, last)`` for coordinates below `counts`.

    Attributes:
        origin: int64[N, D], first start.
        step: int64[N, D], distance between starts.
        last: int64[N, D], largest start; the step to it may be shorter than the others.
        counts: int64[N, D], number of starts; 0 if an image has no room for a crop.
    """

    origin: IntArray
    step: IntArray
    last: IntArray
    counts: IntArray

    def totals(self) -> IntArray:
        """Return the number of crops of each image, int64[N]."""
        totals: IntArray = np.prod(self.counts, axis=1, dtype=np.int64)
        return totals

    def starts(self, images: IntArray, coords: IntArray) -> IntArray:
        """Return the starts at coordinates int64[B, D] of images int64[B]."""
        return np.minimum(self.origin[images] + coords * self.step[images], self.last[images])

    def nearest(self, images: IntArray, starts: FloatArray) -> IntArray:
        """Return the lattice starts nearest to arbitrary ones, int64[B, D]; of two equally near ones the larger."""
        coords = np.floor((starts - self.origin[images]) / self.step[images] + 0.5).astype(np.int64)
        found = self.starts(images, np.clip(coords, 0, self.counts[images] - 1))
        last = self.last[images]  # the step to it may be shorter
        return np.where(np.abs(starts - last) <= np.abs(starts - found), last, found)

    def covers(self, image: int, axis: int, points: FloatArray, extent: int) -> BoolArray:
        """Return which points along an axis of an image lie in a crop of that extent, bool[B]."""
        origin, step, last = (int(each[image, axis]) for each in (self.origin, self.step, self.last))
        before = np.where(points >= last, last, origin + (points - origin) // step * step)
        return np.asarray((points >= origin) & (points < before + extent), dtype=np.bool_)


def tile_lattice(sizes: IntArray, extent: IntArray, stride: IntArray, *, edges: Edges) -> Lattice:
    """Return the starts of tiles that cover images.

    Args:
        sizes: int64[N, D], sizes of the images.
        extent: int64[D], extent of a tile.
        stride: int64[D] or [N, D], distance between tiles.
        edges: how to treat a last tile that would extend beyond the image: "shift" moves it inside, where it overlaps
            its neighbour, "pad" lets it extend beyond, "drop" leaves it out.

    Raises:
        ConfigError: `edges` is unknown, or an image is smaller than a tile and `edges` is "shift".
    """
    if edges not in get_args(Edges):
        raise ConfigError(f"edges must be one of {', '.join(get_args(Edges))}; got {edges!r}")
    room = sizes - extent
    whole = room // stride + 1
    if edges == "drop":
        counts = np.where(room < 0, 0, whole)
    else:
        covering = -(-room // stride) + 1
        # With a stride larger than the extent, a tile could be completely outside.
        counts = np.clip(covering, 1, np.maximum((sizes - 1) // stride + 1, 1))
    last = (counts - 1) * stride
    if edges == "shift":
        _refuse_small(sizes, extent)
        last = np.minimum(last, room)
    return Lattice(origin=np.zeros_like(sizes), step=np.broadcast_to(stride, sizes.shape), last=last, counts=counts)


def free_lattice(sizes: IntArray, extent: IntArray, step: IntArray, *, padded: bool) -> Lattice:
    """Return the possible starts of a random crop: every multiple of `step` inside, and the last place inside.

    If an image is smaller than a crop and `padded`, the crop contains it, at any offset.

    Args:
        sizes: int64[N, D], sizes of the images.
        extent: int64[D], extent of a crop.
        step: int64[D] or [N, D], distance between starts.
        padded: whether crops may extend beyond the image.

    Raises:
        ConfigError: an image is smaller than a crop and not `padded`.
    """
    if not padded:
        _refuse_small(sizes, extent)
    room = sizes - extent
    origin, last = np.minimum(room, 0), np.maximum(room, 0)
    counts = -(-(last - origin) // step) + 1
    return Lattice(origin=origin, step=np.broadcast_to(step, sizes.shape), last=last, counts=counts)


def snapped_lattice(lattice: Lattice, ratio: FloatArray, shift: FloatArray, *, tiles: bool) -> Lattice:
    """Return the starts of a lattice at which the boxes of all F fields start at a whole element.

    The box of a field starts at ``start * ratio + shift``, in elements of its own array.

    Args:
        lattice: starts of N images along D axes.
        ratio: float64[F, N, D]; 0 for an axis that a field lacks.
        shift: float64[F, N, D].
        tiles: whether the starts cover the images, so that none may be dropped.

    Raises:
        ConfigError: no start is suitable, or one of the tiles is not.
    """
    facts = np.concatenate([ratio, shift]).transpose(1, 2, 0)
    kinds, which = np.unique(facts.reshape(-1, facts.shape[2]), axis=0, return_inverse=True)
    fitting = np.array([_fitting_starts(*np.split(kind, 2)) for kind in kinds], dtype=np.int64)
    period, first = np.moveaxis(fitting[which.ravel()].reshape(*facts.shape[:2], 2), -1, 0)
    origin = lattice.origin + (first - lattice.origin) % period
    last = lattice.last - (lattice.last - first) % period
    lost = lattice.totals() > 0
    if tiles:
        lost &= ((origin != lattice.origin) | (last != lattice.last) | (lattice.step % period != 0)).any(axis=1)
        mend = f'a stride and a shape in steps of {period.max()}, and edges="pad" or "drop"'
    else:
        lost &= (period < 1).any(axis=1) | (last < origin).any(axis=1)
        mend = f"a shape in steps of {period.max()}"
    if lost.any():
        image = int(np.flatnonzero(lost)[0])
        raise ConfigError(
            f"snap=True: in image {image} boxes of a field would begin between two of its elements (valid starts "
            f"are {period[image].tolist()} apart): use {mend}, or fields on the reference's grid"
        )
    if tiles:
        return lattice
    step = np.lcm(lattice.step, period)
    return Lattice(
        origin=origin, step=step, last=last, counts=np.where(lattice.counts > 0, -(-(last - origin) // step) + 1, 0)
    )


def _fitting_starts(ratio: FloatArray, shift: FloatArray) -> tuple[int, int]:
    """Return the distance between starts at which all fields fit, and the first such start from 0 on."""
    fractions = [Fraction(float(each)).limit_denominator(_MOST_PERIOD) for each in ratio]
    period = math.lcm(*(fraction.denominator for fraction in fractions))
    starts = np.arange(min(period, _MOST_PERIOD))[:, None] * ratio + shift
    fits = np.flatnonzero((np.abs(starts - np.round(starts)) < _NEAR).all(axis=1))
    if period > _MOST_PERIOD or not len(fits):
        raise ConfigError(
            f"snap=True: no crop begins at an element boundary of every field: an element of the first field is "
            f"{ratio.tolist()} elements of the fields, and their boxes begin {shift.tolist()} elements off. A shape in "
            f"steps of {period} may work, or fields on the reference's grid"
        )
    return period, int(fits[0])


def _refuse_small(sizes: IntArray, extent: IntArray) -> None:
    small = (sizes < extent).any(axis=1)
    if small.any():
        image = int(np.flatnonzero(small)[0])
        raise ConfigError(
            f"crops of {extent.tolist()} do not fit into image {image}, which has {sizes[image].tolist()} along these "
            f"axes ({int(small.sum())} of {len(sizes)} images are too small): use smaller crops, exclude those images "
            'with where=, or set pad="fill", "edge" or "reflect" (for tiles with edges="pad")'
        )


def tiles_on_curve(numbers: IntArray, counts: IntArray, block: IntArray) -> IntArray:
    """Return the coordinates of tiles, int64[B, D]: a bijection between the numbers and the tiles of each grid.

    Args:
        numbers: int64[B], each below the product of its counts.
        counts: int64[B, D], tiles along each axis of the number's grid.
        block: int64[D], most tiles of a block along each axis.
    """
    num_axes = counts.shape[1]
    # Tiles per step along axis d: the product of the counts of the later axes.
    behind = np.cumprod(counts[:, ::-1], axis=1)[:, ::-1] // counts
    left = numbers.copy()
    held = np.ones_like(numbers)
    turned = np.zeros(len(numbers), dtype=np.bool_)
    low, size, flip = np.empty_like(counts), np.empty_like(counts), np.empty(counts.shape, dtype=np.bool_)
    for axis in range(num_axes):
        count, slab = counts[:, axis], held * behind[:, axis]
        segments = -(-count // block[axis])
        # Segment i starts at floor(i * count / segments); this finds the segment that contains a row.
        segment = ((left // slab + 1) * segments - 1) // count
        start = segment * count // segments
        low[:, axis], size[:, axis] = start, (segment + 1) * count // segments - start
        flip[:, axis] = turned
        left -= start * slab
        held *= size[:, axis]
        # Reversed if the number of segments visited so far, over all axes up to here, is odd.
        turned = (turned & (segments % 2 == 1)) ^ (segment % 2 == 1)
    # What is left is the number inside the block; an axis visited backwards is mirrored.
    coords = np.empty_like(low)
    for axis in reversed(range(num_axes)):
        coords[:, axis] = low[:, axis] + left % size[:, axis]
        left //= size[:, axis]
    return np.where(flip, counts - 1 - coords, coords)


def num_blocks(counts: IntArray, block: IntArray) -> int:
    """Return the total number of blocks in grids of int64[N, D] tiles."""
    return int(np.prod(-(-counts // block), axis=1).sum())
