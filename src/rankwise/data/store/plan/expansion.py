"""From boxes to the chunks they touch, for all boxes at once: arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray

__all__ = ["Pieces", "expand"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces:
    """The parts into which the grids of chunks cut boxes: T pieces, box by box, in C order of the chunks.

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


def expand(low: IntArray, high: IntArray, chunk: IntArray) -> Pieces:
    """Cut boxes ``low <= x < high`` at the edges of chunks.

    Args:
        low: int64[n, ndim], inside the array.
        high: int64[n, ndim]; a box with ``high <= low`` along an axis has no pieces.
        chunk: int64[n, ndim], shape of the chunks of each box's array.
    """
    first = low // chunk
    counts = np.where(high > low, (high - 1) // chunk - first + 1, 0)
    sizes = counts[:, 0].copy()
    for axis in range(1, counts.shape[1]):  # column by column: NumPy is slow along short rows
        sizes *= counts[:, axis]
    if (sizes == 1).all():  # rows often are: each in one chunk
        box = np.arange(len(low), dtype=np.int64)
        return Pieces(box=box, coords=first, src_start=low - first * chunk, extent=high - low, begin=low)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    box = np.repeat(np.arange(len(low), dtype=np.int64), sizes)
    local = np.arange(total, dtype=np.int64) - np.repeat(ends - sizes, sizes)
    coords = np.empty((total, low.shape[1]), dtype=np.int64)
    for axis in range(low.shape[1] - 1, 0, -1):
        local, coords[:, axis] = np.divmod(local, counts[box, axis])
    coords[:, 0] = local  # what is left is the slowest axis
    coords += first[box]
    chunk_begin = coords * chunk[box]
    begin = np.maximum(low[box], chunk_begin)
    extent = np.minimum(high[box], chunk_begin + chunk[box]) - begin
    return Pieces(box=box, coords=coords, src_start=begin - chunk_begin, extent=extent, begin=begin)
