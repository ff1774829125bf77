"""Columns as long as all rows, taken block by block: NumPy makes 8 bytes of each number that it is to index with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rankwise.data.contract import BoolArray, NDArray

__all__ = ["blocks", "num_stretches", "places_where", "row_dtype", "taken"]

_BLOCK = 1 << 18


def blocks(num: int) -> Iterator[slice]:
    """Yield slices of at most 2^18 places that cover [0, num)."""
    for start in range(0, num, _BLOCK):
        yield slice(start, min(start + _BLOCK, num))


def row_dtype(num_rows: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint32 and uint64 that holds so many rows and their numbers."""
    return np.dtype(np.uint32 if num_rows < 2**32 else np.uint64)


def taken(values: NDArray, places: NDArray) -> NDArray:
    """Return ``values[places]``, in memory for little more than that.

    Args:
        values: [m, ...].
        places: whole numbers [n], which may be negative as in Python.
    """
    found: NDArray = np.empty((len(places), *values.shape[1:]), dtype=values.dtype)
    for part in blocks(len(places)):
        found[part] = values[places[part]]
    return found


def places_where(num: int, holds: Callable[[slice], BoolArray]) -> NDArray:
    """Return the places in [0, num) where something holds, ascending, in `row_dtype`.

    Args:
        num: how many places there are.
        holds: tells it for a slice; asked twice for each.
    """
    counts = [int(np.count_nonzero(holds(part))) for part in blocks(num)]
    found: NDArray = np.empty(sum(counts), dtype=row_dtype(num))
    first = 0
    for part, count in zip(blocks(num), counts, strict=True):
        inside = found[first : first + count]
        inside[:] = np.flatnonzero(holds(part))
        inside += part.start
        first += count
    return found


def num_stretches(values: NDArray, width: int) -> int:
    """Return how many stretches [k * width, (k + 1) * width) ascending values, of which there is one, lie in."""
    found = 1
    for part in blocks(len(values)):
        stretch = values[max(0, part.start - 1) : part.stop] // width
        found += int(np.count_nonzero(stretch[1:] != stretch[:-1]))
    return found
