"""Files of records: a block's number and some arrays, one record behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rankwise.data.contract import NDArray

__all__ = ["append_record", "scan_records"]


def append_record(path: Path, block: int, arrays: Sequence[NDArray]) -> None:
    """Add a record at the end of a file."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    header = np.array([block, *(array.nbytes for array in arrays)], dtype="<i8")
    with path.open("ab") as file:
        file.write(header.data)
        for array in arrays:
            file.write(array.reshape(-1).view(np.uint8).data)


def scan_records(path: Path, num_arrays: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Go through the records of a file, reading their heads only; half a record at the end is left out.

    Yields:
        The number of the block, and for each array where it begins and how many bytes it has.
    """
    head_bytes, end, place = 8 * (num_arrays + 1), path.stat().st_size, 0
    with path.open("rb") as file:
        while place + head_bytes <= end:
            file.seek(place)
            block, *sizes = np.frombuffer(file.read(head_bytes), dtype="<i8").tolist()
            starts = (np.cumsum([place + head_bytes, *sizes])).tolist()
            place = starts.pop()
            if place > end:
                return
            yield block, starts, sizes
