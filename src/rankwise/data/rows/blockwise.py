"""Process columns with one value per row block by block: NumPy converts index arrays to 8 bytes per number."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rankwise.data.contract import BoolArray, NDArray

_BLOCK = 1 << 18


def blocks(num: int) -> Iterator[slice]:
    """Yield slices of at most 2^18 indices that cover [0, num)."""
    for start in range(0, num, _BLOCK):
        yield slice(start, min(start + _BLOCK, num))


def row_dtype(num_rows: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint32 and uint64 that holds row numbers and the row count."""
    return np.dtype(np.uint32 if num_rows < 2**32 else np.uint64)


def taken(values: NDArray, places: NDArray) -> NDArray:
    """Return ``values[places]``, using little more memory than the result; places may count from the end."""
    found: NDArray = np.empty((len(places), *values.shape[1:]), dtype=values.dtype)
    for part in blocks(len(places)):
        found[part] = values[places[part]]
    return found


def places_where(num: int, holds: Callable[[slice], BoolArray]) -> NDArray:
    """Return the indices in [0, num) where a condition holds, ascending, in `row_dtype`; asked twice for a slice."""
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
    """Return how many intervals [k * width, (k + 1) * width) contain values; they are ascending and not empty."""
    found = 1
    for part in blocks(len(values)):
        stretch = values[max(0, part.start - 1) : part.stop] // width
        found += int(np.count_nonzero(stretch[1:] != stretch[:-1]))
    return found
