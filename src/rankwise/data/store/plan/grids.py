"""Small arithmetic on grids of chunks and files."""

from __future__ import annotations

import itertools

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.meta import ArrayMeta

__all__ = ["different", "grid_of", "per_file", "ravel"]

_LARGEST = 2**63 - 1


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


def different(array: IntArray, number: IntArray, sizes: list[int]) -> tuple[IntArray, IntArray]:
    """Return where each different (array, number) comes first, in their order, and for each row which of them it is.

    Args:
        array: int64[n].
        number: int64[n], each below the size of its array.
        sizes: for each array, how many numbers there are.
    """
    if sum(sizes) <= _LARGEST:
        bases = np.array([0, *itertools.accumulate(sizes)], dtype=np.int64)
        _, first, which = np.unique(number + bases[array], return_index=True, return_inverse=True)
    else:  # absurd grids: slower, but nothing overflows
        rows = np.stack([array, number], axis=1)
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)
