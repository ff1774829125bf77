"""Inside a lane: the order of its pieces, and the order of samples inside a window of pieces.

The pieces of a lane lie shuffled in its slots; `window` consecutive slots form a window, whose samples are permuted
among themselves. So a sample is found by two permutations and some counting, and a reader that keeps a window of chunks
per lane decodes each chunk once.
"""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.order.bijection import permute
from rankwise.data.order.lanes import Grid, LaneColumns, piece_in_slot
from rankwise.data.order.mixing import mix_words

__all__ = ["lane_samples", "missing_before", "on_ring", "slot_start"]


def lane_samples(grid: Grid, columns: LaneColumns, index: IntArray) -> IntArray:
    """Return the samples at places of lanes, int64 of the broadcast shape.

    Args:
        grid: the numbers of the order.
        columns: the lane of each place; broadcasts against `index`.
        index: int64, place inside the lane, from 0.
    """
    place = _mix_window(grid, columns, index) if grid.window * grid.chunk_samples > 1 else index
    if grid.chunk_samples == 1:
        return on_ring(grid, columns.start + permute(place, columns.length, columns.piece_key))
    slot, begin = _locate(grid, columns, place, slots=1)
    piece = piece_in_slot(columns, slot)
    offset = place - begin + piece * grid.chunk_samples - missing_before(columns, columns.short_piece, piece)
    return on_ring(grid, columns.start + offset)


def on_ring(grid: Grid, sample: IntArray) -> IntArray:
    """Return samples counted on beyond the ring's end as those at its beginning."""
    return sample - grid.num_samples * (sample >= grid.num_samples)


def _mix_window(grid: Grid, columns: LaneColumns, index: IntArray) -> IntArray:
    """Permute each place among those of its window."""
    window, start = _locate(grid, columns, index, slots=grid.window)
    size = slot_start(grid, columns, np.minimum((window + 1) * grid.window, columns.pieces)) - start
    key = mix_words(window.astype(np.uint64) ^ columns.window_key)
    return start + permute(index - start, size, key)


def _locate(grid: Grid, columns: LaneColumns, place: IntArray, *, slots: int) -> tuple[IntArray, IntArray]:
    """Return which group of `slots` slots holds each place, and the place at which the group starts."""
    group = place // (slots * grid.chunk_samples)
    group, _ = np.broadcast_arrays(group, columns.start)
    # Short pieces only move later groups forward, by less than three chunks together: at most three corrections.
    while True:
        following = slot_start(grid, columns, np.minimum((group + 1) * slots, columns.pieces))
        behind = following <= place
        if not behind.any():
            return group, slot_start(grid, columns, group * slots)
        group = group + behind


def slot_start(grid: Grid, columns: LaneColumns, slot: IntArray) -> IntArray:
    """Return the place at which a slot starts; the slot after the last one starts at the lane's length."""
    return slot * grid.chunk_samples - missing_before(columns, columns.short_slot, slot)


def missing_before(columns: LaneColumns, short: IntArray, number: IntArray) -> IntArray:
    """Return how many samples the short pieces before `number` lack."""
    lacking: IntArray = columns.deficit[0] * (short[0] < number)
    lacking += columns.deficit[1] * (short[1] < number)
    lacking += columns.deficit[2] * (short[2] < number)
    return lacking
