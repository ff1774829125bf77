"""Small arithmetic on grids of chunks and files."""

from __future__ import annotations

import itertools

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.meta import ArrayMeta

__all__ = ["any_axis", "different", "grid_of", "per_file", "ravel"]

_LARGEST = 2**63 - 1
_SPARSEST = 8  # times as many values as rows are still marked, not sorted


def grid_of(shape: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many parts an array has along each axis; the last may be shorter."""
    return tuple(-(-size // extent) for size, extent in zip(shape, part, strict=True))


def per_file(meta: ArrayMeta) -> tuple[int, ...]:
    """Return how many chunks a file holds along each axis."""
    return tuple(file // chunk for file, chunk in zip(meta.files, meta.chunks, strict=True))


def ravel(coords: IntArray, sizes: IntArray) -> IntArray:
    """Return the place of each row of coordinates in its own grid, in C order.

    Args:
        coords: int64[n, ndim].
        sizes: int64[n, ndim].
    """
    flat = np.zeros(len(coords), dtype=np.int64)
    for axis in range(coords.shape[1]):
        flat = flat * sizes[:, axis] + coords[:, axis]
    return flat


def any_axis(marks: BoolArray) -> BoolArray:
    """Return ``marks.any(axis=1)``, for few axes: column by column, as NumPy is slow along short rows.

    Args:
        marks: bool[n, ndim], at least one axis.
    """
    found = marks[:, 0].copy()
    for axis in range(1, marks.shape[1]):
        found |= marks[:, axis]
    return found


def different(array: IntArray, number: IntArray, sizes: list[int]) -> tuple[IntArray, IntArray]:
    """Return a row of each different (array, number), in their order, and for each row which of them it is.

    Args:
        array: int64[n].
        number: int64[n], each below the size of its array.
        sizes: for each array, how many numbers there are.
    """
    total = sum(sizes)
    if total <= _SPARSEST * len(number):
        return _marked(number + _bases(sizes)[array], total)
    if total <= _LARGEST:
        _, first, which = np.unique(number + _bases(sizes)[array], return_index=True, return_inverse=True)
    else:  # absurd grids: slower, but nothing overflows
        rows = np.stack([array, number], axis=1)
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _bases(sizes: list[int]) -> IntArray:
    return np.array([0, *itertools.accumulate(sizes)], dtype=np.int64)


def _marked(values: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """The same by marking which of `total` values there are: quicker than sorting where many rows share few values."""
    place = np.full(total, -1, dtype=np.int64)
    place[values] = np.arange(len(values), dtype=np.int64)  # of equals, any one stays
    there = np.flatnonzero(place >= 0)
    rows = place[there]
    place[there] = np.arange(len(there), dtype=np.int64)
    return rows, place[values]
