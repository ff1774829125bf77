"""The compiled loop that spreads CSR rows over dense ones.

This module imports numba: import it late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.store.decode.machine import elements, types

__all__ = ["SPREAD_SIGNATURE", "SpreadLoop", "spread_loop"]

SpreadLoop = Callable[[int, int, int, int, int, int, int, int, int, int], int]
SPREAD_SIGNATURE = types.int64(*[types.int64] * 10)


def spread_loop(element: Any, index: Any) -> SpreadLoop:
    """Return the loop for elements and indices of a type, such as `numpy.uint32`; elements are moved, not looked at.

    Its arguments are addresses and numbers: data, indices and row pointers of the CSR rows; int32 places of the columns
    (-1 = left out), or 0 where column i goes to place i; how many columns there are; where the dense rows begin and
    how many elements each has; the rows to do, from the first to before the last; and uint8 states, one for each row.
    """
    itemsize = np.dtype(element).itemsize
    small, state_type = np.int32, np.uint8

    def loop(  # noqa: PLR0917
        data: int,
        indices: int,
        indptr: int,
        places: int,
        num_cols: int,
        out: int,
        width: int,
        first: int,
        last: int,
        states: int,
    ) -> int:
        values, columns, bounds = elements(data, element), elements(indices, index), elements(indptr, index)
        moved, noted = elements(places, small), elements(states, state_type)
        for row in range(first, last):
            given = elements(out + row * width * itemsize, element)
            for at in range(width):
                given[at] = 0
            state = 0
            for number in range(bounds[row], bounds[row + 1]):
                column = columns[number]
                if column < 0 or column >= num_cols:
                    state |= 1
                    continue
                at = column
                if places != 0:
                    at = moved[column]
                    if at < 0:
                        continue
                if given[at] != 0:
                    state |= 2
                given[at] = values[number]
            noted[row] = state
        return 0

    return loop
