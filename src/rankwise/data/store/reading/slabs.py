"""How the chunks of a plan are dealt out: a few neighbours at a time, from one file after the other."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray

__all__ = ["cut_slabs"]

_SLAB_BYTES = 16 * 2**20  # decoded; some ten milliseconds, after which an interrupt is heard
_GOOD_BYTES = 16 * 2**20  # touching these takes so long that handing a slab out costs nothing beside it
_SLABS_PER_THREAD = 2, 4  # at least and at most, to share out evenly
_WORTH_BYTES = 2**18  # touching these takes about as long as handing a slab out
_LARGE_BYTES = 2**62


def cut_slabs(
    file: IntArray, chunk_bytes: int, num_threads: int, *, work_bytes: int = _LARGE_BYTES
) -> list[tuple[int, int]]:
    """Return runs ``first:last`` of chunks that one thread takes at a time, in the order in which they are taken.

    The chunks of a file stay in order. Where several files are long, their runs take turns: reads of one file wait
    for each other on network file systems, reads of several do not.

    Args:
        file: int64[K], the file of each chunk, ascending.
        chunk_bytes: bytes of a decoded chunk.
        num_threads: threads that will take them.
        work_bytes: bytes that are touched in all, about; few of them are not worth more hands.
    """
    few, many = (count * num_threads for count in _SLABS_PER_THREAD)
    parts = max(1, min(few, work_bytes // _WORTH_BYTES), min(many, work_bytes // _GOOD_BYTES))
    if num_threads == 1:  # one thread has nobody to share with
        parts = 1
    fair = -(-len(file) // parts)
    most = max(1, min(fair, _SLAB_BYTES // max(1, chunk_bytes)))
    slabs: list[tuple[int, int, int]] = []
    edges = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist(), len(file)]
    begin = 0
    for edge in edges[1:]:
        if edge - begin < most and edge != len(file):
            continue  # short files share a slab
        slabs += [(turn, first, min(first + most, edge)) for turn, first in enumerate(range(begin, edge, most))]
        begin = edge
    return [(first, last) for _, first, last in sorted(slabs)]
