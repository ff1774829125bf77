"""`Buckets`: rows on their way, in files of neighbouring places."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.moving.fields import Field
from rankwise.data.rows.collection.moving.records import append_record, scan_records
from rankwise.errors import DataError

__all__ = ["Buckets"]

_PLACE = np.dtype(np.int64)


class Buckets:
    """Rows come in blocks, in any order, and leave in the order of their places, one bucket at a time in memory.

    Every process that adds rows has files of its own. A block counts when `accepts` says that it came in whole, in the
    file of that process; what else is in the files is left from processes that were killed.

    Args:
        folder: where the files lie.
        edges: int64[buckets + 1], places at which buckets begin.
        fields: what a row has.
        piece: name of the files of this process.
        accepts: whether a block of a piece counts.
    """

    def __init__(
        self,
        folder: Path,
        edges: IntArray,
        fields: Sequence[Field],
        piece: str,
        accepts: Callable[[str, int], bool],
    ) -> None:
        self._folder, self.edges, self.fields = folder, edges, tuple(fields)
        self._piece, self._accepts = piece, accepts
        counts = [1, *(len(field.dtypes) for field in self.fields)]
        self._first = np.cumsum([0, *counts]).tolist()

    def add(self, block: int, places: IntArray, values: Sequence[Any]) -> None:
        """Add rows.

        Args:
            block: number that tells them from others.
            places: int64[n], where they go; rows of one place keep the order of their blocks.
            values: for each field n rows.
        """
        bucket = np.searchsorted(self.edges, places, side="right") - 1
        order = np.argsort(bucket, kind="stable")
        numbers, starts = np.unique(bucket[order], return_index=True)
        spans = list(zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True))
        packed = [field.pack(rows, order, spans) for field, rows in zip(self.fields, values, strict=True)]
        moved = places[order]
        for at, (number, (start, stop)) in enumerate(zip(numbers.tolist(), spans, strict=True)):
            folder = self._folder / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            arrays = [array for field in packed for array in field[at]]
            append_record(folder / self._piece, block, [moved[start:stop], *arrays])

    def open(self, number: int) -> Bucket:
        """Find the rows of a bucket."""
        found = []
        for path in sorted((self._folder / str(number)).glob("*")):
            for block, starts, sizes in scan_records(path, self._first[-1]):
                if self._accepts(path.name, block):
                    found.append(_Record(block, path, starts, sizes))
        return Bucket(sorted(found), self.fields, self._first)

    def drop(self, numbers: range) -> None:
        """Delete the files of buckets."""
        for number in numbers:
            shutil.rmtree(self._folder / str(number), ignore_errors=True)


class _Record(NamedTuple):
    block: int
    path: Path
    starts: list[int]
    sizes: list[int]


class Bucket:
    """The rows of one bucket.

    Args:
        records: where they are.
        fields: what a row has.
        first: for each field the number of its first array in a record.
    """

    def __init__(self, records: Sequence[_Record], fields: tuple[Field, ...], first: list[int]) -> None:
        self._records, self._fields, self._first = records, fields, first
        self.places: IntArray = self._load(0, _PLACE)
        self._order = np.argsort(self.places, kind="stable")

    def __len__(self) -> int:
        return len(self._order)

    def lengths(self, which: int) -> IntArray:
        """Return the elements of each row of a field that is ragged, in the order of their places."""
        return self._load(self._first[which + 1], np.dtype(np.int32))[self._order].astype(np.int64)

    def rows(self, which: int) -> Any:
        """Return a field of all rows in the order of their places."""
        field = self._fields[which]
        parts = [self._load(self._first[which + 1] + at, dtype) for at, dtype in enumerate(field.dtypes)]
        return field.unpack(parts, self._order)

    def _load(self, part: int, dtype: Any) -> NDArray:
        """Read one array of all records into one."""
        whole = np.empty(sum(record.sizes[part] for record in self._records), dtype=np.uint8)
        start = 0
        with ExitStack() as stack:
            paths = {record.path for record in self._records}
            files = {path: stack.enter_context(path.open("rb", buffering=0)) for path in paths}
            for record in self._records:
                stop = start + record.sizes[part]
                files[record.path].seek(record.starts[part])
                _fill(files[record.path], whole[start:stop])
                start = stop
        return whole.view(dtype)


def _fill(file: FileIO, into: NDArray) -> None:
    """Read so many bytes; a raw file may give fewer at a time."""
    view = into.data
    while view:
        count = file.readinto(view)
        if not count:
            raise DataError(f"{file.name} became shorter while it was read")
        view = view[count:]
