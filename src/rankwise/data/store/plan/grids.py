"""Grids of chunks and files: the chunks that boxes overlap, for all boxes at once. Arithmetic only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import BoolArray, IntArray

_LARGEST = 2**63 - 1
_SPARSEST = 8  # up to this ratio of values to rows, marking is faster than sorting


def grid_of(shape: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many parts an array has along each axis; the last may be shorter."""
    return tuple(-(-size // extent) for size, extent in zip(shape, part, strict=True))


def of_arrays(shapes: Sequence[tuple[int, ...]], which: IntArray, ndim: int) -> IntArray:
    """Return one shape for each element of `which`, that of its array: int64[n, ndim]."""
    rows = np.array(shapes, dtype=np.int64).reshape(len(shapes), ndim)
    if len(rows) == 1:
        return np.broadcast_to(rows, (len(which), ndim))
    return rows.take(which, axis=0)


def ravel(coords: IntArray, sizes: IntArray) -> IntArray:
    """Return the index of each row of coordinates, int64[n, ndim], in a grid of its own sizes, in C order."""
    flat = np.zeros(len(coords), dtype=np.int64)
    for axis in range(coords.shape[1]):
        flat = flat * sizes[:, axis] + coords[:, axis]
    return flat


def any_axis(marks: BoolArray) -> BoolArray:
    """Return ``marks.any(axis=1)`` for few axes, at least one: by columns, because NumPy is slow along short rows."""
    found = marks[:, 0].copy()
    for axis in range(1, marks.shape[1]):
        found |= marks[:, axis]
    return found


def distinct(
    array: IntArray, coords: IntArray, grids: Sequence[tuple[int, ...]]
) -> tuple[IntArray, IntArray, IntArray]:
    """Find the distinct parts of arrays among n parts.

    Args:
        array: int64[n], the array of each part.
        coords: int64[n, ndim], its coordinates in the grid of the array.
        grids: for each array, how many parts it has along each axis.

    Returns:
        int64[n], the index of each part in its grid, in C order; for each distinct part one of its places in the input,
            by array and index; and int64[n], for each part which of these it is.
    """
    number = ravel(coords, of_arrays(grids, array, coords.shape[1]))
    ends = [*itertools.accumulate(map(math.prod, grids), initial=0)]
    if ends[-1] > _LARGEST:  # absurdly large grids: slower, but without overflow
        rows = np.stack([array, number], axis=1)
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return number, first, which.reshape(-1)
    values = number + np.array(ends, dtype=np.int64)[array]
    if ends[-1] > _SPARSEST * len(number):
        _, first, which = np.unique(values, return_index=True, return_inverse=True)
        return number, first, which.reshape(-1)
    place = np.full(ends[-1], -1, dtype=np.int64)
    place[values] = np.arange(len(values), dtype=np.int64)  # of equal values, any one remains
    there = np.flatnonzero(place >= 0)
    first = place[there]
    place[there] = np.arange(len(there), dtype=np.int64)
    return number, first, place[values]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """The parts into which chunk grids cut boxes: T pieces, box by box, in C order of the chunks.

    Attributes:
        box: int64[T], row of the input.
        coords: int64[T, ndim], coordinates of the chunk in its array's grid.
        src_start: int64[T, ndim], first element inside the chunk.
        extent: int64[T, ndim], elements along each axis.
        begin: int64[T, ndim], first element inside the array.
    """

    box: IntArray
    coords: IntArray
    src_start: IntArray
    extent: IntArray
    begin: IntArray


def _divided(elements: IntArray, chunk: IntArray) -> IntArray:
    if len(chunk) == 0 or chunk.strides[0] != 0:
        return elements // chunk
    made = np.empty_like(elements)  # one array: NumPy divides several times faster by a number than by an array
    for axis, size in enumerate(chunk[0].tolist()):
        np.floor_divide(elements[:, axis], size, out=made[:, axis])
    return made


def expand(low: IntArray, high: IntArray, chunk: IntArray) -> Pieces:
    """Cut boxes ``low <= x < high`` at the edges of chunks.

    Args:
        low: int64[n, ndim], inside the array.
        high: int64[n, ndim]; a box with ``high <= low`` along an axis has no pieces.
        chunk: int64[n, ndim], shape of the chunks of each box's array.
    """
    first = _divided(low, chunk)
    counts = np.where(high > low, _divided(high - 1, chunk) - first + 1, 0)
    sizes = counts[:, 0].copy()
    for axis in range(1, counts.shape[1]):  # column by column: NumPy is slow along short rows
        sizes *= counts[:, axis]
    if (sizes == 1).all():  # often true for rows: each is in one chunk
        box = np.arange(len(low), dtype=np.int64)
        return Pieces(box=box, coords=first, src_start=low - first * chunk, extent=high - low, begin=low)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    box = np.repeat(np.arange(len(low), dtype=np.int64), sizes)
    local = np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes)
    coords = np.empty((total, low.shape[1]), dtype=np.int64)
    for axis in range(low.shape[1] - 1, 0, -1):
        local, coords[:, axis] = np.divmod(local, counts[box, axis])
    coords[:, 0] = local  # the remainder is the slowest axis
    coords += first[box]
    chunk_begin = coords * chunk[box]
    begin = np.maximum(low[box], chunk_begin)
    extent = np.minimum(high[box], chunk_begin + chunk[box]) - begin
    return Pieces(box=box, coords=coords, src_start=begin - chunk_begin, extent=extent, begin=begin)
