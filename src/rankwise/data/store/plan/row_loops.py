"""Compiled loops that cut rows at chunk edges and assign the pieces to chunks.

They take the address of a table of numbers and addresses. This module imports numba: import it late.
"""

from __future__ import annotations

import numpy as np

from rankwise.data.store.decode.machine import elements

__all__ = ["count_pieces", "place_pieces"]

# Slots of a job's table. Addresses are those of int64 tables; if `lengths` is 0, all boxes have the length
# `length`.
_NUM, _STARTS, _STEP, _LENGTHS, _LENGTH, _WHICH, _CHUNKS, _BASES, _COUNTS = range(9)
_PLACES, _WIDTH, _NDIM, _BOX, _SRC_START, _EXTENT, _DST_START = range(9, 16)
_word = np.int64


def count_pieces(address: int) -> int:
    """Add the number of pieces of each chunk to `counts`; return the total number."""
    job = elements(address, _word)
    starts, which, lengths = elements(job[_STARTS], _word), elements(job[_WHICH], _word), elements(job[_LENGTHS], _word)
    chunks, bases, counts = elements(job[_CHUNKS], _word), elements(job[_BASES], _word), elements(job[_COUNTS], _word)
    total = 0
    for row in range(job[_NUM]):
        length = lengths[row] if job[_LENGTHS] != 0 else job[_LENGTH]
        if length > 0:
            begin, chunk, base = starts[row * job[_STEP]], chunks[which[row]], bases[which[row]]
            first, last = begin // chunk, (begin + length - 1) // chunk
            total += last - first + 1
            for number in range(first, last + 1):
                counts[base + number] += 1
    return total


def place_pieces(address: int) -> int:
    """Write pieces into the tables, those of a chunk from the index in `counts` on; return 0."""
    job = elements(address, _word)
    starts, which, lengths = elements(job[_STARTS], _word), elements(job[_WHICH], _word), elements(job[_LENGTHS], _word)
    chunks, bases, counts = elements(job[_CHUNKS], _word), elements(job[_BASES], _word), elements(job[_COUNTS], _word)
    places, box, dst_start = elements(job[_PLACES], _word), elements(job[_BOX], _word), elements(job[_DST_START], _word)
    src_start, extent = elements(job[_SRC_START], _word), elements(job[_EXTENT], _word)
    for row in range(job[_NUM]):
        length = lengths[row] if job[_LENGTHS] != 0 else job[_LENGTH]
        if length > 0:
            begin, chunk, base = starts[row * job[_STEP]], chunks[which[row]], bases[which[row]]
            for number in range(begin // chunk, (begin + length - 1) // chunk + 1):
                low, high = max(begin, number * chunk), min(begin + length, (number + 1) * chunk)
                at = counts[base + number]
                counts[base + number] = at + 1
                box[at], dst_start[at] = row, (places[row] + low - begin) * job[_WIDTH]
                src_start[at * job[_NDIM]], extent[at * job[_NDIM]] = low - number * chunk, high - low
    return 0
