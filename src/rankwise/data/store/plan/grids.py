"""Small arithmetic on grids of chunks and files."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.meta import ArrayMeta

__all__ = ["grid_of", "per_file", "ravel"]


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
