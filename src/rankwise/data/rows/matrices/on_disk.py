"""Matrices on disk: opening them, and their metadata."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from rankwise.data.contract import DType
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.store import ArrayMeta, BoxReader
from rankwise.data.store.meta import STORES
from rankwise.data.store.meta.documents import resolve_place
from rankwise.errors import DataError

__all__ = ["StoredDense", "StoredMatrix", "StoredSparse", "open_matrix"]


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSparse:
    """A CSR matrix in the format of AnnData."""

    place: str
    num_cols: int
    data: ArrayMeta  # the elements, [nnz]
    indices: ArrayMeta  # their columns, [nnz]
    pointers: RowPointers  # start of each row
    # a chunk begins at each multiple of this number of rows; None = chunk edges can be anywhere
    rows_per_chunk: int | None = None

    def __post_init__(self) -> None:
        shapes = {"data": self.data.shape, "indices": self.indices.shape}
        if self.data.ndim != 1 or self.data.shape != self.indices.shape or self.indices.dtype.kind not in "iu":
            listing = ", ".join(f"{name} has {list(shape)}" for name, shape in shapes.items())
            raise DataError(
                f"the CSR matrix {self.place} needs data and indices of the same length along one axis, and integers "
                f"as indices; {listing}, indices are {self.indices.dtype}: copy or write it again"
            )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
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
        """Average number of neighbouring rows that are stored together."""
        if self.rows_per_chunk is not None:
            return max(1, min(self.num_rows, self.rows_per_chunk))
        per_row = self.data.shape[0] / max(1, self.num_rows)
        return max(1, min(self.num_rows, round(self.data.chunks[0] / max(per_row, 1e-9))))

    @property
    def row_bytes(self) -> float:
        """Average decoded bytes of a row: elements and columns as stored."""
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
    """A dense matrix, or an array with any number of axes; row i is ``array[i]``."""

    array: ArrayMeta

    @property
    def place(self) -> str:
        """Its location, for messages."""
        return self.array.place

    @property
    def num_rows(self) -> int:
        """Number of rows."""
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
        """Number of neighbouring rows that are stored together."""
        return max(1, min(self.num_rows, self.array.chunks[0]))

    @property
    def row_bytes(self) -> float:
        """Decoded bytes of a row."""
        across = (-(-size // chunk) for size, chunk in zip(self.array.shape[1:], self.array.chunks[1:], strict=True))
        return self.array.chunk_bytes / self.array.chunks[0] * math.prod(across)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the metadata: equal for a copy at another path."""
        facts = ["dense", self.array.shape, self.array.dtype.str, self.array.chunks]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


StoredMatrix: TypeAlias = StoredSparse | StoredDense


_PARTS = ("data", "indices", "indptr")
_LENGTHS = "row_nnz"  # written by our writer


def open_matrix(uri: str | os.PathLike[str], reader: BoxReader) -> StoredMatrix:
    """Open a matrix of an AnnData store, for example ``STORE/X``, ``STORE/layers/counts`` or ``STORE/obsm/X_pca``.

    Raises:
        DataError: there is no matrix, it has another format (for example CSC), or it is damaged.
    """
    place = resolve_place(uri)
    node = STORES.node(place)
    if node is None:
        raise STORES.missing(place)
    if node.kind == "array":
        return StoredDense(array=STORES.array(node))
    kind = node.attributes.get("encoding-type")
    if kind == "csc_matrix":
        raise DataError(
            f"the matrix {place} is stored column by column (CSC): reading its rows would decode all of it; store it "
            "by rows, for example with adata.X = adata.X.tocsr()"
        )
    if kind != "csr_matrix":
        held = "no matrix" if kind is None else repr(kind)
        raise DataError(f"{place} holds {held}; rows need CSR matrices or dense arrays")
    parts = {}
    for name in _PARTS:
        part = STORES.node(f"{place}/{name}")
        if part is None or part.kind != "array":
            raise DataError(f"the CSR matrix {place} lacks its array {name!r}: copy or write it again")
        parts[name] = STORES.array(part)
    beside = STORES.node(f"{place}/{_LENGTHS}")
    lengths = STORES.array(beside) if beside is not None and beside.kind == "array" else None
    shape: Any = node.attributes.get("shape")
    per_chunk = node.attributes.get("rows_per_chunk")
    whole = isinstance(shape, (list, tuple)) and len(shape) == 2 and all(isinstance(size, int) for size in shape)
    num_cols = shape[1] if whole else None
    pointers = RowPointers(parts["indptr"], parts["data"].shape[0], reader, lengths=lengths, num_cols=num_cols)
    if num_cols is None or shape[0] != pointers.num_rows:
        raise DataError(
            f"the CSR matrix {place} needs an attribute shape=[{pointers.num_rows}, columns] that fits its row "
            f"pointers; got {shape!r}: write it again"
        )
    aligned = lengths is not None and isinstance(per_chunk, int) and per_chunk > 0
    return StoredSparse(
        place=place, num_cols=num_cols, data=parts["data"], indices=parts["indices"], pointers=pointers,
        rows_per_chunk=per_chunk if aligned else None,
    )  # fmt: skip
