"""`Field`: one thing that every row has, and how it is packed on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.moving.text import Text

__all__ = ["Field"]

Spans = Sequence[tuple[int, int]]
_LENGTH: DType = np.dtype(np.int32)
_BYTE: DType = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """A matrix, or a column about the rows.

    Attributes:
        name: "X", "layers/counts", "obs/cell_type", ...
        kind: "dense" = an array; "csr" = a CSR matrix; "text" = a `Text`.
        row_shape: shape of a row; () for columns and texts.
        dtype: dtype that holds the elements of all inputs.
        row_bytes: decoded bytes of a row, on average.
    """

    name: str
    kind: Literal["dense", "csr", "text"]
    row_shape: tuple[int, ...] = ()
    dtype: DType = _BYTE
    row_bytes: float = 0.0

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Dtypes of the arrays that rows are packed into: for what is ragged lengths come first."""
        if self.kind == "dense":
            return (self.dtype,)
        return (_LENGTH, np.dtype(np.int32), self.dtype) if self.kind == "csr" else (_LENGTH, self.dtype)

    def pack(self, rows: Any, order: IntArray, spans: Spans) -> list[list[NDArray]]:
        """Bring rows into an order and cut them: for each span the arrays that hold its rows."""
        if self.kind == "text":
            rows = rows.take(order)
            return [_ragged(rows.lengths, (rows.data,), span) for span in _cuts(rows.lengths, spans)]
        rows = rows[order]
        if self.kind == "dense":
            return [[rows[start:stop]] for start, stop in spans]
        lengths = np.diff(rows.indptr).astype(_LENGTH)
        return [_ragged(lengths, (rows.indices, rows.data), span) for span in _cuts(lengths, spans)]

    def unpack(self, parts: Sequence[NDArray], order: IntArray) -> Any:
        """Turn packed rows into an array, a CSR matrix or a `Text`, in an order."""
        if self.kind == "dense":
            return parts[0].reshape(len(order), *self.row_shape)[order]
        if self.kind == "text":
            return Text(*parts).take(order)
        import scipy.sparse as sp

        lengths, indices, data = parts
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return sp.csr_matrix((data, indices, indptr), shape=(len(order), self.row_shape[0]))[order]


def _cuts(lengths: NDArray, spans: Spans) -> list[tuple[int, int, int, int]]:
    """Where spans of rows begin and end, and where their elements do."""
    ends = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0), dtype=np.int64)])
    return [(start, stop, int(ends[start]), int(ends[stop])) for start, stop in spans]


def _ragged(lengths: NDArray, elements: tuple[NDArray, ...], span: tuple[int, int, int, int]) -> list[NDArray]:
    start, stop, first, last = span
    return [lengths[start:stop], *(array[first:last] for array in elements)]
