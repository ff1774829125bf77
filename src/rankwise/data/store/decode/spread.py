"""Loops that write the elements of sparse rows to dense ones. Imports numba: import it late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.store.decode.dense_rows import OUTSIDE, PIECE, UNSURE, WHOLE
from rankwise.data.store.decode.fetching import memcpy
from rankwise.data.store.decode.machine import (
    blank64,
    call_plane,
    elements,
    external,
    falls_of,
    get,
    inlined,
    peek64,
    put,
    stream64,
    types,
)
from rankwise.data.store.decode.planes import PlaneLoop
from rankwise.data.store.decode.symbols import PREFIX
from rankwise.data.store.decode.tasks import SLOTS

__all__ = ["PER_LINE", "spread_loop", "weave_loop"]

PER_LINE = 4  # elements to place for each line of 64 bytes that is written

_long = types.int64


def weave_loop(element: Any, column: Any, place: Any, *, chosen: bool) -> PlaneLoop:
    """Return the loop for elements, columns and places of types like `numpy.uint32`.

    Its arguments are those of a plane with other meanings: address of the elements; of their columns, which must be
    valid and rising; number of lines; address where the waiting row is written, and of its bytes, which are zeroed
    afterwards; the job. It places `PER_LINE` elements per line.

    Args:
        element: unsigned integer as wide as an element.
        column: type of columns.
        place: type of the table of places.
        chosen: whether there is such a table; else columns are places.
    """
    of_two, of_four = np.dtype(column).itemsize == 2, np.dtype(element).itemsize == 4

    def weave(  # noqa: PLR0917
        values: int, columns: int, lines: int, target: int, source: int, job: int, _scale: float, _offset: float
    ) -> int:
        given, taken, named = elements(get(job, _BLANK), element), elements(values, element), elements(columns, column)
        moved = elements(get(job, _PLACES), place)
        for line in range(lines):
            at = PER_LINE * line
            if of_two:  # four at once
                word = peek64(columns + 8 * line)
                a, b, c, d = word & 0xFFFF, (word >> 16) & 0xFFFF, (word >> 32) & 0xFFFF, (word >> 48) & 0xFFFF
            else:
                a, b, c, d = _long(named[at]), _long(named[at + 1]), _long(named[at + 2]), _long(named[at + 3])
            if chosen:
                a, b, c, d = _long(moved[a]), _long(moved[b]), _long(moved[c]), _long(moved[d])
            if of_four:  # two at once
                low, high = peek64(values + 16 * line), peek64(values + 16 * line + 8)
                given[a], given[b], given[c], given[d] = low, low >> 32, high, high >> 32
            else:
                given[a], given[b], given[c], given[d] = taken[at], taken[at + 1], taken[at + 2], taken[at + 3]
            stream64(target + 64 * line, source + 64 * line)
            blank64(source + 64 * line)
        return 0

    return weave


_NUM_COLS, _WIDTH, _PLACES, _WEAVE = SLOTS["its_num_cols"], SLOTS["width"], SLOTS["its_places"], SLOTS["weave"]
_BLANK, _SPARE, _WAITING = SLOTS["blank"], SLOTS["spare"], SLOTS["waiting"]
_LINE_BYTES = 64
_memset = external(f"{PREFIX}memset", _long, _long, types.int32, _long)


@inlined
def _moved_elements(taken: Any, named: Any, moved: Any, count: int, row: int, job: int, element: Any, size: int) -> int:  # noqa: PLR0917
    """Put elements with rising columns to their places in a row, dropped ones to the extra place; return 0."""
    width = get(job, _WIDTH)
    beside = get(job, _BLANK) + width * size
    for at in range(count):
        place = _long(moved[named[at]])
        address = row + place * size if place < width else beside
        elements(address, element)[0] = taken[at]
    elements(beside, element)[0] = 0
    return 0


@inlined
def _searched_elements(  # noqa: PLR0917
    taken: Any, given: Any, named: Any, moved: Any, count: int, job: int
) -> int:
    """Put elements with columns in any order to their places; return the marks for them."""
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
def _write_edges(target: int, source: int, num_bytes: int) -> int:
    """Write the parts that do not fill a line of the target, and zero them; return the bytes before the first line."""
    head = min(-target & 63, num_bytes)
    tail = (num_bytes - head) & 63
    if head != 0:
        memcpy(target, source, head)
        _memset(source, types.int32(0), head)
    if tail != 0:
        memcpy(target + num_bytes - tail, source + num_bytes - tail, tail)
        _memset(source + num_bytes - tail, types.int32(0), tail)
    return head


@inlined
def _woven(values: int, columns: int, count: int, num_bytes: int, job: int) -> int:
    """Write the waiting row while placing elements, if there are any; return how many were placed."""
    target, source = get(job, _WAITING), get(job, _SPARE)
    if target == 0:
        return 0
    head = _write_edges(target, source, num_bytes)
    target, source, lines = target + head, source + head, (num_bytes - head) >> 6
    woven = min(lines, count // PER_LINE)
    if woven != 0:
        call_plane(get(job, _WEAVE), values, columns, woven, target, source, job, 0.0, 0.0)
    for line in range(woven, lines):
        stream64(target + 64 * line, source + 64 * line)
        blank64(source + 64 * line)
    put(job, _WAITING, 0)
    return PER_LINE * woven


@inlined
def _wait(row: int, job: int) -> int:
    """Queue the completed row for writing, and start the next one in zeroed memory."""
    blank = get(job, _BLANK)
    put(job, _WAITING, row)
    put(job, _BLANK, get(job, _SPARE))
    put(job, _SPARE, blank)
    return 0


def _rising(column: Any) -> Callable[[int, int, int], int]:
    """Return a function for compiled code that checks whether columns are rising and valid.

    Then no column appears twice, and no other check is needed. It compares line by line, the last ones twice.
    """
    falls, size = falls_of(column), np.dtype(column).itemsize
    many = _LINE_BYTES // size

    @inlined
    def rises(columns: int, count: int, num_cols: int) -> int:
        named, fell = elements(columns, column), 0
        if count > many:
            for line in range((count - 2) // many):
                fell |= falls(columns + size + _LINE_BYTES * line)
            fell |= falls(columns + (count - many) * size)
        else:
            for at in range(1, count):
                fell |= 1 if named[at] <= named[at - 1] else 0
        return 1 if fell == 0 and named[0] >= 0 and named[count - 1] < num_cols else 0

    return rises


def spread_loop(element: Any, column: Any, place: Any) -> PlaneLoop:
    """Return the loop for elements, columns and places of types like `numpy.uint32`.

    Its arguments are those of a plane with other meanings: addresses of the elements, the dense row and the columns;
    number of elements; 1 for a whole row, 2 for a piece that is parked, 0 for other pieces; the job. It returns
    `OUTSIDE` and `UNSURE`.

    A whole row is assembled in memory that stays in the caches, is zero otherwise, and has one extra place for dropped
    columns. It is written while the next one is assembled, or when the loop is called without elements. A piece is
    written to its row directly, which must be zero; the row of a parked piece also has one extra place.
    """
    itemsize, rising = np.dtype(element).itemsize, _rising(column)

    def spread(  # noqa: PLR0917
        values: int, row: int, columns: int, count: int, kind: int, job: int, _scale: float, _offset: float
    ) -> int:
        width, places, mark, done = get(job, _WIDTH), get(job, _PLACES), 0, 0
        taken, named, moved = elements(values, element), elements(columns, column), elements(places, place)
        rises = rising(columns, count, get(job, _NUM_COLS)) if count != 0 else 0
        if kind == WHOLE:
            done = _woven(values, columns, count if rises != 0 else 0, width * itemsize, job)
        given = elements(get(job, _BLANK) if kind == WHOLE else row, element)
        if rises == 0:
            mark = _searched_elements(taken, given, named, moved, count, job) | (0 if kind == WHOLE else UNSURE)
        elif places == 0:
            for at in range(done, count):
                given[named[at]] = taken[at]
        elif kind != PIECE:  # dropped elements go to the extra place: cheaper than a branch
            for at in range(done, count):
                given[moved[named[at]]] = taken[at]
            if count != 0:
                given[width] = 0
        else:
            _moved_elements(taken, named, moved, count, row, job, element, itemsize)
        if kind == WHOLE and count != 0:
            _wait(row, job)
        return mark

    return spread
