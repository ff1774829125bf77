"""Turns matrices stored by columns into rows, via the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.buckets import Buckets, Field
from rankwise.data.rows.collection.inputs import Columnwise, Table

__all__ = ["Turned"]


class Turned:
    """A matrix stored by columns, whose rows can be read once all its elements were moved.

    Elements are read in pieces, in order, and spilled into files of neighbouring rows; a file is sorted by row in
    memory. Memory holds at most one piece or one block of rows. Blocks begin at multiples of `block_rows`; `piece` and
    `accepts` are as for `Buckets`.
    """

    def __init__(
        self, table: Table, folder: Path, block_rows: int, piece: str, accepts: Callable[[str, int], bool]
    ) -> None:
        assert isinstance(table.held, Columnwise)
        self._held, self._table, self._block_rows = table.held, table, block_rows
        edges = np.append(np.arange(0, max(1, table.shape[0]), block_rows, dtype=np.int64), table.shape[0])
        fields = (
            Field(name="columns", kind="dense", dtype=np.dtype(np.int32)),
            Field(name="values", kind="dense", dtype=table.dtype),
        )
        self._buckets = Buckets(folder, edges, fields, piece, accepts)
        self._goes = None if table.rows is None else _inverse(table.rows, table.held.shape[0])

    @property
    def num_elements(self) -> int:
        """Number of elements to move."""
        return self._held.nnz

    def spill(self, portion: int, start: int, stop: int) -> None:
        """Move elements to the files of their rows."""
        rows, columns, values = self._held.elements(start, stop)
        if self._goes is not None:
            rows = self._goes[rows]
            kept = rows >= 0
            rows, columns, values = rows[kept], columns[kept], values[kept]
        if len(rows):
            self._buckets.add(portion, rows, (columns, values))

    def block(self, start: int, stop: int) -> Any:
        """Return a block of rows as a CSR matrix; its columns are sorted if the input's elements were read in order."""
        import scipy.sparse as sp

        bucket = self._buckets.open(start // self._block_rows)
        counts = np.bincount(bucket.places - start, minlength=stop - start)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        shape = (stop - start, self._table.shape[1])
        return sp.csr_matrix((bucket.rows(1), bucket.rows(0), indptr), shape=shape)


def _inverse(rows: IntArray, num_rows: int) -> IntArray:
    """Return the target of each row, -1 = none."""
    goes = np.full(num_rows, -1, dtype=np.int64)
    goes[rows] = np.arange(len(rows))
    return goes
