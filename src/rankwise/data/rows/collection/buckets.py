"""`Buckets`: rows on their way, in files of neighbouring places of the collection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.joining import Field

__all__ = ["Buckets"]

_PLACES = "places"


class Buckets:
    """Rows come in the order of the inputs and leave in the order of the collection, one bucket at a time in memory.

    Args:
        folder: where the files lie.
        edges: int64[buckets + 1], places of the collection where buckets begin.
        fields: the matrices.
    """

    def __init__(self, folder: Path, edges: IntArray, fields: Sequence[Field]) -> None:
        self._folder, self.edges, self._fields = folder, edges, tuple(fields)

    def add(self, places: IntArray, blocks: Sequence[Any]) -> None:
        """Add rows.

        Args:
            places: int64[n], where in the collection they go.
            blocks: for each matrix n rows, as a CSR matrix or an array.
        """
        bucket = np.searchsorted(self.edges, places, side="right") - 1
        order = np.argsort(bucket, kind="stable")
        numbers, starts = np.unique(bucket[order], return_index=True)
        stops = [*starts[1:].tolist(), len(order)]
        spans = list(zip(numbers.tolist(), starts.tolist(), stops, strict=True))
        for number, start, stop in spans:
            self._append(number, _PLACES, places[order[start:stop]])
        for which, block in enumerate(blocks):
            rows = block[order]
            for number, start, stop in spans:
                self._append_rows(number, which, rows, start, stop)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file."""
        return {path.name: path.stat().st_size for path in self._folder.iterdir()}

    def cut(self, sizes: dict[str, int]) -> None:
        """Go back to an earlier state of the files."""
        for path in self._folder.iterdir():
            size = sizes.get(path.name, 0)
            if path.stat().st_size != size:
                os.truncate(path, size)

    def places(self, number: int) -> IntArray:
        """Return where in the collection the rows of a bucket go, as they came."""
        return self._read(number, _PLACES, np.dtype(np.int64))

    def lengths(self, number: int, which: int) -> IntArray:
        """Return the elements of each row of a CSR matrix, in the order of the collection."""
        lengths = self._read(number, f"{which}.lengths", np.dtype(np.int64))
        return lengths[np.argsort(self.places(number))]

    def rows(self, number: int, which: int) -> Any:
        """Return the rows of a bucket in the order of the collection, as a CSR matrix or an array."""
        field, order = self._fields[which], np.argsort(self.places(number))
        values = self._read(number, f"{which}.values", field.dtype)
        if not field.sparse:
            return values.reshape(len(order), *field.row_shape)[order]
        import scipy.sparse as sp

        indptr = np.concatenate([[0], np.cumsum(self._read(number, f"{which}.lengths", np.dtype(np.int64)))])
        indices = self._read(number, f"{which}.columns", np.dtype(np.int32))
        return sp.csr_matrix((values, indices, indptr), shape=(len(order), field.row_shape[0]))[order]

    def drop(self, numbers: range) -> None:
        """Delete the files of buckets."""
        for number in numbers:
            for path in self._folder.glob(f"{number}.*"):
                path.unlink()

    def _append_rows(self, number: int, which: int, rows: Any, start: int, stop: int) -> None:
        if not self._fields[which].sparse:
            self._append(number, f"{which}.values", rows[start:stop])
            return
        first, last = int(rows.indptr[start]), int(rows.indptr[stop])
        self._append(number, f"{which}.lengths", np.diff(rows.indptr[start : stop + 1]).astype(np.int64))
        self._append(number, f"{which}.columns", rows.indices[first:last].astype(np.int32, copy=False))
        self._append(number, f"{which}.values", rows.data[first:last])

    def _append(self, number: int, part: str, values: NDArray) -> None:
        with (self._folder / f"{number}.{part}").open("ab") as file:
            file.write(np.ascontiguousarray(values).data)

    def _read(self, number: int, part: str, dtype: DType) -> NDArray:
        path = self._folder / f"{number}.{part}"
        return np.fromfile(path, dtype=dtype) if path.exists() else np.empty(0, dtype=dtype)
