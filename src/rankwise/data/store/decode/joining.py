"""Rows that the edge of a chunk cuts in two and one thread decodes: they are put together like whole ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import IntArray

__all__ = ["ONE_PIECE", "OTHER_PIECE", "PARKED", "PIECE", "WHOLE", "cut_in_two"]

PIECE, WHOLE, PARKED = 0, 1, 2  # what elements are of their row; a piece that waits for the other one is parked
ONE_PIECE, OTHER_PIECE = -1, -2  # of a row that is joined, instead of its length


def cut_in_two(
    bounds: IntArray, rows: IntArray, cut: IntArray, slabs: Sequence[tuple[int, int]]
) -> tuple[IntArray, IntArray]:
    """Return the targets that are one piece of a row, and those that are the other one, in the chunk after it.

    There is one row at most for each pair of chunks: a row that is asked for twice comes together once.

    Args:
        bounds: int64[K + 1], the targets of chunk k are those from ``bounds[k]`` to ``bounds[k + 1]``.
        rows: int64[T], the row of each target.
        cut: int64[n], targets that are one of the two pieces of a row.
        slabs: which chunks are decoded in order by one thread, as ``first:last``.
    """
    cut = cut[np.argsort(rows[cut], kind="stable")]  # pairs, in the order of their chunks
    one, other = cut[::2], cut[1::2]
    chunk, following = (np.searchsorted(bounds, targets, side="right") - 1 for targets in (one, other))
    begins = np.sort([first for first, _ in slabs])
    slab, its = (np.searchsorted(begins, chunks, side="right") for chunks in (chunk, following))
    near = np.flatnonzero((following == chunk + 1) & (slab == its))
    _, alone = np.unique(chunk[near], return_index=True)
    return one[near[alone]], other[near[alone]]
