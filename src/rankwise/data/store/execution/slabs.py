"""Divides the chunks of a plan among threads, a few neighbours at a time; and numbers for arrays."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import IntArray
from rankwise.data.store.boxes import TWICE, Spread
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan

__all__ = ["Serials", "chunk_keys", "cut_slabs", "settled"]

_SLAB_BYTES = 16 * 2**20  # decoded; some ten milliseconds, after which an interrupt is handled
_GOOD_BYTES = 16 * 2**20  # processing these takes so long that the cost of a task does not matter
_SLABS_PER_THREAD = 2, 4  # at least and at most, for an even distribution
_WORTH_BYTES = 2**18  # processing these takes about as long as handing out a task
_LARGE_BYTES = 2**62


def cut_slabs(
    file: IntArray, chunk_bytes: int, num_threads: int, *, work_bytes: int = _LARGE_BYTES
) -> list[tuple[int, int]]:
    """Return runs ``first:last`` of chunks, each for one thread at a time, in the order in which threads take them.

    The chunks of a file stay in order. If several files are long, their runs alternate: on network file systems, reads
    of one file wait for each other, but reads of several files do not.

    Args:
        file: int64[K], the file of each chunk, ascending.
        chunk_bytes: bytes of a decoded chunk.
        num_threads: threads that will take them.
        work_bytes: approximate number of bytes to process; for few bytes more threads do not help.
    """
    few, many = (count * num_threads for count in _SLABS_PER_THREAD)
    parts = max(1, min(few, work_bytes // _WORTH_BYTES), min(many, work_bytes // _GOOD_BYTES))
    if num_threads == 1:  # a single thread needs no division
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


_MOST_ARRAYS = 2**17
_numbers = itertools.count()  # never reused, so an old cache entry is never taken for a new array


def chunk_keys(serial: int, numbers: IntArray) -> list[int]:
    """Return keys for chunks of an array: integers, because the garbage collector would visit tuples repeatedly."""
    base = serial << 64
    return [base | number for number in numbers.tolist()]


class Serials:
    """Remembers the numbers of the most recently used arrays; thread-safe."""

    def __init__(self, most: int = _MOST_ARRAYS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def of(self, array: ArrayMeta) -> int:
        """Return the number of an array; equal for equal places and metadata while it is remembered."""
        value = (array.place, array.fingerprint)
        with self._lock:
            serial = self._known.pop(value, None)
            self._known[value] = next(_numbers) if serial is None else serial
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[value]

    def forget(self) -> None:
        """Give every array a new number from now on."""
        with self._lock:
            self._known.clear()


def settled(states: npt.NDArray[np.uint8], plan: BoxPlan, cut: IntArray, spread: Spread) -> npt.NDArray[np.uint8]:
    """Return `OUTSIDE` and `TWICE` for each row, after checking rows in which a column may appear twice.

    These are rows with columns that are not rising, if a decoder saw them in pieces or met a column twice.

    Args:
        states: uint8[B], from the decoder.
        plan: of the elements.
        cut: int64[n], targets of rows in several pieces.
        spread: their columns.
    """
    runs, targets = plan.request.runs, plan.targets
    assert runs is not None
    cut = cut[targets.dst_start[cut] != runs.places[targets.box[cut]]]
    at = targets.dst_start[cut]
    falls = spread.columns[at] <= spread.columns[at - 1]  # from one piece to the next, which no decoder sees
    states[targets.box[cut[falls]]] |= TWICE
    for row in np.flatnonzero(states & TWICE).tolist():
        begin, length = int(runs.places[row]), int(runs.lengths[row])
        columns = spread.columns[begin : begin + length]
        if len(np.unique(columns)) == length:
            states[row] &= ~TWICE & 0xFF
    return states
