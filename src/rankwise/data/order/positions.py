"""Positions of an epoch to samples: single positions at random, and runs of positions in blocks that are kept."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.order.lanes import Grid, lane_columns
from rankwise.data.order.rows import rows_of_samples
from rankwise.data.order.windows import lane_samples

__all__ = ["run_of_samples", "samples_at"]

# Large enough to hide the cost of a NumPy call, small enough for the processor's cache and a start in a millisecond.
BLOCK = 1 << 13


def samples_at(grid: Grid, seed: int, epoch: int, positions: IntArray) -> IntArray:
    """Return the samples at any positions of an epoch, int64[len(positions)]."""
    columns = lane_columns(grid, seed, epoch)
    found = np.empty(len(positions), dtype=np.int64)
    for low in range(0, len(positions), BLOCK):
        part = positions[low : low + BLOCK]
        found[low : low + BLOCK] = lane_samples(grid, columns.take(part % grid.lanes), part // grid.lanes)
    return found


def run_of_samples(grid: Grid, seed: int, epoch: int, start: int, count: int) -> IntArray:
    """Return the samples at the positions [start, start + count), int64[count]."""
    size = _block_size(grid)
    low, high = start // size, (start + count - 1) // size
    blocks = [_block(grid, seed, epoch, number) for number in range(low, high + 1)]
    run = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    begin = start - low * size
    return run[begin : begin + count].copy()


def _block_size(grid: Grid) -> int:
    return max(1, BLOCK // grid.lanes) * grid.lanes


@lru_cache(maxsize=8)
def _block(grid: Grid, seed: int, epoch: int, number: int) -> IntArray:
    """Return a block of consecutive positions: one row per place, one column per lane, so nothing is looked up."""
    columns = lane_columns(grid, seed, epoch)
    rows = _block_size(grid) // grid.lanes
    low = number * rows
    whole = min(low + rows, grid.num_samples // grid.lanes)
    block = rows_of_samples(grid, columns, low, whole).ravel()
    left = grid.num_samples - whole * grid.lanes
    if whole < low + rows and left:
        place = np.full(left, whole, dtype=np.int64)
        block = np.concatenate([block, lane_samples(grid, columns.take(np.arange(left)), place)])
    block.setflags(write=False)
    return block
