"""Loops that spread the elements of sparse rows over dense ones.

One is compiled for each size of elements and type of columns that is met; elements are moved, not looked at. They are
called like the loops of `planes`. This module imports numba: import it late.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.store.decode.dense_rows import OUTSIDE, UNSURE
from rankwise.data.store.decode.job import SLOTS
from rankwise.data.store.decode.machine import elements, external, get, inlined, types
from rankwise.data.store.decode.planes import PlaneLoop
from rankwise.data.store.decode.streaming import stream_bytes
from rankwise.data.store.decode.symbols import PREFIX

__all__ = ["spread_loop"]

_NUM_COLS, _WIDTH, _PLACES, _BLANK = SLOTS["its_num_cols"], SLOTS["width"], SLOTS["its_places"], SLOTS["blank"]
_long = types.int64
_memset = external(f"{PREFIX}memset", _long, _long, types.int32, _long)


@inlined
def _rises(named: Any, count: int, num_cols: int) -> int:
    """Whether columns rise and are all there: then none comes twice, and nothing else needs to be looked at."""
    falls = np.uint8(0)
    for at in range(1, count):
        falls = np.uint8(falls | np.uint8(named[at] <= named[at - 1]))
    return 1 if falls == 0 and named[0] >= 0 and named[count - 1] < num_cols else 0


@inlined
def _moved_elements(  # noqa: PLR0917
    taken: Any, given: Any, named: Any, moved: Any, count: int, width: int
) -> int:
    """Put elements of rising columns to their places, if those are in the row; returns 0."""
    for at in range(count):
        if moved[named[at]] < width:
            given[moved[named[at]]] = taken[at]
    return 0


@inlined
def _searched_elements(  # noqa: PLR0917
    taken: Any, given: Any, named: Any, moved: Any, count: int, job: int
) -> int:
    """Put elements of columns in any order to their places; returns what is to be said of them."""
    num_cols, width, places, mark = get(job, _NUM_COLS), get(job, _WIDTH), get(job, _PLACES), 0
    for at in range(count):
        wanted = _long(named[at])
        if wanted < 0 or wanted >= num_cols:
            mark |= OUTSIDE
            continue
        place = wanted if places == 0 else _long(moved[wanted])
        if place < width:
            if given[place] != 0:
                mark |= UNSURE
            given[place] = taken[at]
    return mark


@inlined
def _written(job: int, row: int, itemsize: int) -> int:
    """Write the row that was put together to its place, and have its memory blank again; returns 0."""
    blank, size = get(job, _BLANK), get(job, _WIDTH) * itemsize
    stream_bytes(row, blank, size)
    _memset(blank, types.int32(0), size + itemsize)
    return 0


def spread_loop(element: Any, column: Any) -> PlaneLoop:
    """Return the loop for elements of a type such as `numpy.uint32`, and columns of one such as `numpy.uint16`.

    Its arguments are those of a plane with other meanings: address of the elements, of the dense row, of the columns;
    how many there are; whether they are all of their row; the job. It returns `OUTSIDE` and `UNSURE`.

    A whole row is put together in memory that stays in the caches and is blank otherwise, and that has one place more,
    for columns that are left out. A piece of a row goes to its place at once: its row is zero already.
    """
    itemsize, small = np.dtype(element).itemsize, np.int32

    def spread(  # noqa: PLR0917
        values: int, row: int, columns: int, count: int, is_whole: int, job: int, _scale: float, _offset: float
    ) -> int:
        places, mark = get(job, _PLACES), 0
        taken, given = elements(values, element), elements(get(job, _BLANK) if is_whole else row, element)
        named, moved = elements(columns, column), elements(places, small)
        rises = _rises(named, count, get(job, _NUM_COLS))
        if rises == 0:
            mark = _searched_elements(taken, given, named, moved, count, job) | (0 if is_whole else UNSURE)
        elif places == 0:
            for at in range(count):
                given[named[at]] = taken[at]
        elif is_whole:  # what is left out goes to the one place more: cheaper than asking
            for at in range(count):
                given[moved[named[at]]] = taken[at]
        else:
            _moved_elements(taken, given, named, moved, count, get(job, _WIDTH))
        if is_whole:
            _written(job, row, itemsize)
        return mark

    return spread
