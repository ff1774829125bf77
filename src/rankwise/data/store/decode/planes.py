"""Loops that write elements to the output: those of a plane (rows of adjacent elements), cast, or of sparse rows.

Each pair of dtypes gets its own compiled loop. Loops take addresses, so that one compiled loop over chunks can
call any of them. This module imports numba: import it late.

Variants are branches on constants of the enclosing function: numba removes branches that are not taken before it
infers types, and its disk cache distinguishes variants by the values of these constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.store.decode.machine import (
    bfloat16_bits,
    double_from_half,
    elements,
    external,
    falls_of,
    float_from_half_bits,
    get,
    half_bits,
    half_bits_of_double,
    inlined,
    memcpy,
    stream_bytes,
    types,
)
from rankwise.data.store.decode.symbols import PREFIX
from rankwise.data.store.decode.tasks import OUTSIDE, SLOTS, TWICE

# Returns whether a value does not fit; strides are in bytes, columns in elements (in bytes for copies).
PlaneLoop = Callable[[int, int, int, int, int, int, float, float], int]
PLANE_SIGNATURE = types.int64(*[types.int64] * 6, types.float64, types.float64)

# Kinds of elements that a numba dtype does not distinguish.
NUMBER, BOOLEAN, HALF, BFLOAT16 = range(4)


def copied_plane(  # noqa: PLR0917
    src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, _scale: float, _offset: float
) -> int:
    """Copy elements to an output of the stored dtype; return 0."""
    for row in range(rows):
        memcpy(dst + row * dst_stride, src + row * src_stride, cols)
    return 0


def cast_plane(source: Any, source_is: int, target: Any, target_is: int, working: Any, *, scaled: bool) -> PlaneLoop:
    """Return the loop that casts, and scales if asked.

    Args:
        source: scalar type in memory, for example `numpy.uint16`; for half precision the type of its bits.
        source_is: `NUMBER`, `BOOLEAN` or `HALF`.
        target: scalar type in memory.
        target_is: `NUMBER`, `BOOLEAN`, `HALF` or `BFLOAT16`.
        working: intermediate float type between source and target; None = none.
        scaled: whether elements become ``x * scale + offset``, in `working`.
    """
    through = working is not None
    in_double = working is not None and working.__name__ == "float64"

    def plane(  # noqa: PLR0917
        src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, scale: float, offset: float
    ) -> int:
        if scaled:
            times, plus = working(scale), working(offset)
        for row in range(rows):
            taken = elements(src + row * src_stride, source)
            given = elements(dst + row * dst_stride, target)
            for col in range(cols):
                value = taken[col]
                if source_is == BOOLEAN:
                    real = working(value != 0) if through else value != 0
                elif source_is == HALF:
                    real = double_from_half(value) if in_double else float_from_half_bits(value)
                else:
                    real = working(value) if through else value
                done = real * times + plus if scaled else real
                if target_is == HALF:
                    given[col] = half_bits_of_double(done) if in_double else half_bits(done)
                elif target_is == BFLOAT16:
                    given[col] = bfloat16_bits(done)
                elif target_is == BOOLEAN:
                    given[col] = done != 0
                else:
                    given[col] = done
        return 0

    return plane


def checked_plane(source: Any, source_is: int, target: Any, low: Any, high: Any) -> PlaneLoop:
    """Return the loop to an integer type that may not hold every value.

    Args:
        source: scalar type in memory.
        source_is: `NUMBER` or `HALF`.
        target: integer type.
        low: for integers, the smallest valid value, as `source`; for floats, the largest float64 below all valid ones.
        high: the largest valid value, or the smallest float64 above all valid ones.
    """
    exact = source.__name__.startswith(("int", "uint")) and source_is == NUMBER

    def plane(  # noqa: PLR0917
        src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, _scale: float, _offset: float
    ) -> int:
        unfit = 0
        for row in range(rows):
            taken = elements(src + row * src_stride, source)
            given = elements(dst + row * dst_stride, target)
            for col in range(cols):
                value = float_from_half_bits(taken[col]) if source_is == HALF else taken[col]
                if exact:
                    unfit |= (value < low) | (value > high)
                else:
                    unfit |= (not value > low) | (not value < high)
                given[col] = target(value)
        return unfit

    return plane


_long = types.int64
_NUM_COLS, _WIDTH, _PLACES, _BLANK = SLOTS["its_num_cols"], SLOTS["width"], SLOTS["its_places"], SLOTS["blank"]
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
                mark |= TWICE
            given[place] = taken[at]
    return mark


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
    number of elements; 1 for a whole row, 0 for a piece; the job. It returns `OUTSIDE` and `TWICE`.

    A whole row is assembled in memory that stays in the caches, is zero otherwise, and has one extra place for dropped
    columns; then it is written past the caches. A piece is written to its row directly, which must be zero.
    """
    itemsize, rising = np.dtype(element).itemsize, _rising(column)

    def spread(  # noqa: PLR0917
        values: int, row: int, columns: int, count: int, whole: int, job: int, _scale: float, _offset: float
    ) -> int:
        width, places, blank, mark = get(job, _WIDTH), get(job, _PLACES), get(job, _BLANK), 0
        taken, named, moved = elements(values, element), elements(columns, column), elements(places, place)
        given = elements(blank if whole != 0 else row, element)
        if rising(columns, count, get(job, _NUM_COLS)) == 0:
            mark = _searched_elements(taken, given, named, moved, count, job) | (0 if whole != 0 else TWICE)
        elif places == 0:
            for at in range(count):
                given[named[at]] = taken[at]
        elif whole != 0:  # dropped elements go to the extra place: cheaper than a branch
            for at in range(count):
                given[moved[named[at]]] = taken[at]
            given[width] = 0
        else:
            _moved_elements(taken, named, moved, count, row, job, element, itemsize)
        if whole != 0:
            stream_bytes(row, blank, width * itemsize)
            _memset(blank, types.int32(0), width * itemsize)
        return mark

    return spread
