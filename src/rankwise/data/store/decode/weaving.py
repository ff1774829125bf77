"""The quick part of spreading: one row is put together while the row before it is written.

Writing a row past the caches waits for memory, and finding places waits for the caches: done in turns, line by line,
they take little more time together than the longer of the two. A loop of its own, so that it gets all registers. This
module imports numba: import it late.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.store.decode.job import SLOTS
from rankwise.data.store.decode.machine import blank64, elements, get, peek64, stream64, types
from rankwise.data.store.decode.planes import PlaneLoop

__all__ = ["PER_LINE", "weave_loop"]

PER_LINE = 4  # elements that are put to their places for each line of 64 bytes that is written

_BLANK, _PLACES = SLOTS["blank"], SLOTS["its_places"]
_long = types.int64


def weave_loop(element: Any, column: Any, place: Any, *, chosen: bool) -> PlaneLoop:
    """Return the loop for elements, columns and places of types such as `numpy.uint32`.

    Its arguments are those of a plane with other meanings: address of the elements, of their columns, which rise and
    are all there; lines; address of the line where the row before begins to be written, and of its bytes, which are
    blank afterwards; the job. It takes `PER_LINE` elements a line.

    Args:
        element: unsigned integer as wide as an element.
        column: type of columns.
        place: type of the table of places.
        chosen: whether there is one; else columns are places.
    """
    of_two, of_four = np.dtype(column).itemsize == 2, np.dtype(element).itemsize == 4

    def weave(  # noqa: PLR0917
        values: int, columns: int, lines: int, target: int, source: int, job: int, _scale: float, _offset: float
    ) -> int:
        given, taken, named = elements(get(job, _BLANK), element), elements(values, element), elements(columns, column)
        moved = elements(get(job, _PLACES), place)
        for line in range(lines):
            at = PER_LINE * line
            if of_two:  # four in one go
                word = peek64(columns + 8 * line)
                a, b, c, d = word & 0xFFFF, (word >> 16) & 0xFFFF, (word >> 32) & 0xFFFF, (word >> 48) & 0xFFFF
            else:
                a, b, c, d = _long(named[at]), _long(named[at + 1]), _long(named[at + 2]), _long(named[at + 3])
            if chosen:
                a, b, c, d = _long(moved[a]), _long(moved[b]), _long(moved[c]), _long(moved[d])
            if of_four:  # two in one go
                low, high = peek64(values + 16 * line), peek64(values + 16 * line + 8)
                given[a], given[b], given[c], given[d] = low, low >> 32, high, high >> 32
            else:
                given[a], given[b], given[c], given[d] = taken[at], taken[at + 1], taken[at + 2], taken[at + 3]
            stream64(target + 64 * line, source + 64 * line)
            blank64(source + 64 * line)
        return 0

    return weave
