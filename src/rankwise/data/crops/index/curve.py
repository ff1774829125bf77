"""A walk through a grid of tiles that keeps neighbours together: block after block, back and forth.

The grid's axes are cut into nearly equal segments, whose products are blocks. Tiles are numbered along the blocks, and
inside a block row by row, so a run of numbers lies in one place and shares the chunks below it. Which tile has a number
is computed, for any grid, without a table.
"""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import BoolArray, IntArray

__all__ = ["num_blocks", "tiles_on_curve"]


def tiles_on_curve(numbers: IntArray, counts: IntArray, block: IntArray) -> IntArray:
    """Return the coordinates of tiles, int64[B, D]: for each grid a bijection of its numbers and its tiles.

    Args:
        numbers: int64[B], each below the product of its counts.
        counts: int64[B, D], tiles along each axis of the grid that a number belongs to.
        block: int64[D], most tiles of a block along each axis.
    """
    num_axes = counts.shape[1]
    # Tiles behind axis d: the product of the counts of the later axes.
    behind = np.cumprod(counts[:, ::-1], axis=1)[:, ::-1] // counts
    left = numbers.copy()
    held = np.ones_like(numbers)
    turned = np.zeros(len(numbers), dtype=np.bool_)
    low, size, flip = np.empty_like(counts), np.empty_like(counts), np.empty(counts.shape, dtype=np.bool_)
    for axis in range(num_axes):
        count, slab = counts[:, axis], held * behind[:, axis]
        segments = -(-count // block[axis])
        # Segment i starts at floor(i * count / segments); this finds the one that holds a row.
        segment = ((left // slab + 1) * segments - 1) // count
        start = segment * count // segments
        low[:, axis], size[:, axis] = start, (segment + 1) * count // segments - start
        flip[:, axis] = turned
        left -= start * slab
        held *= size[:, axis]
        # Turned where the number of segments walked so far, counted over all axes up to here, is odd.
        turned = (turned & (segments % 2 == 1)) ^ (segment % 2 == 1)
    return _unfolded(left, low, size, counts, flip)


def _unfolded(
    inside: IntArray,
    low: IntArray,
    size: IntArray,
    counts: IntArray,
    flip: BoolArray,
) -> IntArray:
    """From a number inside a block to coordinates; an axis walked backwards is mirrored."""
    coords = np.empty_like(low)
    left = inside
    for axis in reversed(range(low.shape[1])):
        coords[:, axis] = low[:, axis] + left % size[:, axis]
        left = left // size[:, axis]
    return np.where(flip, counts - 1 - coords, coords)


def num_blocks(counts: IntArray, block: IntArray) -> int:
    """Return how many blocks grids of int64[N, D] tiles have together."""
    return int(np.prod(-(-counts // block), axis=1).sum())
