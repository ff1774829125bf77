"""One matrix of a store: CSR in three arrays, or one dense array whose first axis are the rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from rankwise.data.contract import DType
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.store import ArrayMeta
from rankwise.errors import DataError

__all__ = ["StoredDense", "StoredMatrix", "StoredSparse"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSparse:
    """A CSR matrix, as AnnData stores it.

    Attributes:
        place: its group, for messages.
        num_cols: columns.
        data: the elements, [nnz].
        indices: their columns, [nnz].
        pointers: where rows begin.
        rows_per_chunk: every so many rows a chunk begins; None = chunk edges fall anywhere.

    Raises:
        DataError: the arrays do not fit together.
    """

    place: str
    num_cols: int
    data: ArrayMeta
    indices: ArrayMeta
    pointers: RowPointers
    rows_per_chunk: int | None = None

    def __post_init__(self) -> None:
        shapes = {"data": self.data.shape, "indices": self.indices.shape}
        if self.data.ndim != 1 or self.data.shape != self.indices.shape or self.indices.dtype.kind not in "iu":
            listing = ", ".join(f"{name} has {list(shape)}" for name, shape in shapes.items())
            raise DataError(
                f"the CSR matrix {self.place} wants data and indices of the same length along one axis, and whole "
                f"numbers as indices; {listing}, indices are {self.indices.dtype}: copy or write it again"
            )

    @property
    def num_rows(self) -> int:
        """Rows."""
        return self.pointers.num_rows

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self.data.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return (self.num_cols,)

    @property
    def chunk_rows(self) -> int:
        """Neighbouring rows that are stored together, on average."""
        if self.rows_per_chunk is not None:
            return max(1, min(self.num_rows, self.rows_per_chunk))
        per_row = self.data.shape[0] / max(1, self.num_rows)
        return max(1, min(self.num_rows, round(self.data.chunks[0] / max(per_row, 1e-9))))

    @property
    def row_bytes(self) -> float:
        """Decoded bytes of a row, on average: elements and columns as they are stored."""
        return self.data.shape[0] / max(1, self.num_rows) * (self.data.dtype.itemsize + self.indices.dtype.itemsize)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the metadata: equal for a copy at another path."""
        parts = [self.data, self.indices, self.pointers.array]
        if self.pointers.lengths is not None:
            parts.append(self.pointers.lengths)
        facts = ["csr", self.num_cols, *((part.shape, part.dtype.str, part.chunks) for part in parts)]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredDense:
    """A dense matrix, or an array of any number of axes, of which row i is ``array[i]``.

    Attributes:
        array: the array.
    """

    array: ArrayMeta

    @property
    def place(self) -> str:
        """Where it lies, for messages."""
        return self.array.place

    @property
    def num_rows(self) -> int:
        """Rows."""
        return self.array.shape[0]

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self.array.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.array.shape[1:]

    @property
    def chunk_rows(self) -> int:
        """Neighbouring rows that are stored together."""
        return max(1, min(self.num_rows, self.array.chunks[0]))

    @property
    def row_bytes(self) -> float:
        """Decoded bytes of a row."""
        return self.array.chunk_bytes / self.array.chunks[0] * _chunks_across(self.array)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the metadata: equal for a copy at another path."""
        facts = ["dense", self.array.shape, self.array.dtype.str, self.array.chunks]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


StoredMatrix: TypeAlias = StoredSparse | StoredDense


def _chunks_across(array: ArrayMeta) -> int:
    count = 1
    for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True):
        count *= -(-size // chunk)
    return count
