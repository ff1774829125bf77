"""Matrices by row, on disk and in memory: opening them, and their metadata."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.contract.values import short_hash
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.store import ArrayMeta, BoxReader
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.tree import STORES
from rankwise.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class _Matrix:
    """What all matrices have, or arrays with any number of axes; row i is ``matrix[i]``."""

    place: str  # for messages
    shape: tuple[int, ...]  # rows, then the shape of one
    dtype: DType  # of the elements
    chunk_rows: int  # average number of neighbouring rows that are stored together
    row_bytes: float  # average decoded bytes of a row
    fingerprint: str  # hash of the metadata: equal for a copy at another path

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]


_PARTS = ("data", "indices", "indptr")
_LENGTHS = "row_nnz"  # written by our writer


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredSparse(_Matrix):
    """A CSR matrix in the format of AnnData."""

    data: ArrayMeta  # the elements, [nnz]
    indices: ArrayMeta  # their columns, [nnz]
    pointers: RowPointers  # start of each row
    # a chunk begins at each multiple of this number of rows; None = chunk edges can be anywhere
    rows_per_chunk: int | None

    @classmethod
    def of(
        cls, place: str, shape: Any, arrays: Mapping[str, ArrayMeta], reader: BoxReader, *, rows_per_chunk: Any = None
    ) -> Self:
        """Return the matrix of the arrays "data", "indices", "indptr", and "row_nnz" if it is there.

        Args:
            place: its location, for messages.
            shape: its rows and columns, as its metadata say.
            arrays: its arrays by name.
            reader: reads its row pointers.
            rows_per_chunk: as its metadata say; None = unknown.

        Raises:
            DataError: they do not fit together.
        """
        data, indices, lengths = arrays["data"], arrays["indices"], arrays.get(_LENGTHS)
        if data.ndim != 1 or data.shape != indices.shape or indices.dtype.kind not in "iu":
            raise DataError(
                f"the CSR matrix {place} needs data and indices of the same length along one axis, and integers as "
                f"indices; data has {list(data.shape)}, indices has {list(indices.shape)}, indices are "
                f"{indices.dtype}: copy or write it again"
            )
        whole = isinstance(shape, (list, tuple)) and len(shape) == 2 and all(isinstance(size, int) for size in shape)
        num_cols = shape[1] if whole else None
        pointers = RowPointers(arrays["indptr"], data.shape[0], reader, lengths=lengths, num_cols=num_cols)
        if num_cols is None or shape[0] != pointers.num_rows:
            raise DataError(
                f"the CSR matrix {place} needs an attribute shape=[{pointers.num_rows}, columns] that fits its row "
                f"pointers; got {shape!r}: write it again"
            )
        if lengths is None or not isinstance(rows_per_chunk, int) or rows_per_chunk < 1:
            rows_per_chunk = None
        num_rows = pointers.num_rows
        per_row = data.shape[0] / max(1, num_rows)
        parts = [data, indices, pointers.array, *([] if lengths is None else [lengths])]
        together = round(data.chunks[0] / max(per_row, 1e-9)) if rows_per_chunk is None else rows_per_chunk
        return cls(
            place=place,
            shape=(num_rows, num_cols),
            dtype=data.dtype,
            chunk_rows=max(1, min(num_rows, together)),
            row_bytes=per_row * (data.dtype.itemsize + indices.dtype.itemsize),
            fingerprint=short_hash(["csr", num_cols, *((part.shape, part.dtype.str, part.chunks) for part in parts)]),
            data=data,
            indices=indices,
            pointers=pointers,
            rows_per_chunk=rows_per_chunk,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredDense(_Matrix):
    """A dense matrix, or an array with any number of axes."""

    array: ArrayMeta

    @classmethod
    def of(cls, array: ArrayMeta) -> Self:
        """Return the matrix of an array."""
        across = (-(-size // chunk) for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True))
        return cls(
            place=array.place,
            shape=array.shape,
            dtype=array.dtype,
            chunk_rows=max(1, min(array.shape[0], array.chunks[0])),
            row_bytes=array.chunk_bytes / array.chunks[0] * math.prod(across),
            fingerprint=short_hash(["dense", array.shape, array.dtype.str, array.chunks]),
            array=array,
        )


StoredMatrix: TypeAlias = StoredSparse | StoredDense


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
        return StoredDense.of(STORES.array(node))
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
    if beside is not None and beside.kind == "array":
        parts[_LENGTHS] = STORES.array(beside)
    shape, rows_per_chunk = (node.attributes.get(name) for name in ("shape", "rows_per_chunk"))
    return StoredSparse.of(place, shape, parts, reader, rows_per_chunk=rows_per_chunk)


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryMatrix(_Matrix):
    """A matrix of an AnnData in memory, or of an HDF5 file, which is read into memory as a whole on first use."""

    num_elements: int | None  # stored elements of a sparse one; None = it is dense
    is_file: bool  # whether it is still in a file
    load: Callable[[], Any]  # returns it: a NumPy array, or a SciPy sparse matrix

    @classmethod
    def of(
        cls, place: str, shape: tuple[int, ...], dtype: DType, num_elements: int | None,
        *, identity: str, is_file: bool, load: Callable[[], Any],
    ) -> Self:  # fmt: skip
        """Return the matrix; `identity` is a hash of the names of its rows."""
        per_row = math.prod(shape[1:]) if num_elements is None else num_elements / max(1, shape[0])
        return cls(
            place=place,
            shape=shape,
            dtype=dtype,
            chunk_rows=1,  # rows in memory need no locality
            row_bytes=per_row * (dtype.itemsize + (0 if num_elements is None else 4)),
            fingerprint=short_hash(["held", shape, dtype.str, num_elements, identity]),
            num_elements=num_elements,
            is_file=is_file,
            load=load,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "values"}

    @cached_property
    def values(self) -> Any:
        """The matrix; a sparse one as CSR.

        Raises:
            DataError: it cannot be read, or has invalid column numbers.
        """
        found = self.load()
        if self.num_elements is None:
            return np.asarray(found)
        try:
            found = found.tocsr()
            found.check_format(full_check=True)
        except ValueError as error:
            raise DataError(f"the sparse matrix {self.place} is damaged: {error}") from error
        return found


def gather_rows(matrices: Sequence[Any], ends: IntArray, rows: IntArray) -> tuple[NDArray, ...]:
    """Return copies of rows in order: one array, or for CSR matrices data, indices and row pointers.

    Both `ends`, the ends of the matrices, and `rows` count the rows of all matrices, int64.
    """
    which = np.searchsorted(ends, rows, side="right")
    local = rows - np.concatenate([[0], ends[:-1]])[which]
    numbers = np.unique(which).tolist() or [0]
    dtype = np.result_type(*(matrix.dtype for matrix in matrices))
    if isinstance(matrices[0], np.ndarray):
        out = np.empty((len(local), *matrices[0].shape[1:]), dtype=dtype)
        for number in numbers:
            members = which == number
            out[members] = matrices[number][local[members]]
        return (out,)
    import scipy.sparse

    parts = [matrices[number][local[which == number]] for number in numbers]
    taken = parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr")
    if len(parts) > 1:  # from the order of the matrices to that of the rows
        places = np.empty(len(local), dtype=np.int64)
        places[np.argsort(which, kind="stable")] = np.arange(len(local))
        taken = taken[places]
    return taken.data.astype(dtype, copy=False), taken.indices, taken.indptr.astype(np.int64)
