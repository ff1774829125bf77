"""Concatenated matrices in memory, read by row like those on disk."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray, NDArray
from rankwise.data.rows.matrices.plans import MatrixPlan, MatrixStack
from rankwise.data.store import BoxReader
from rankwise.data.store.boxes import check_conversion, converted
from rankwise.data.store.execution import warn_lossy_conversion
from rankwise.errors import ConfigError, DataError

__all__ = ["MOST_FILE_BYTES", "MemoryMatrix", "MemoryStack", "gather_rows"]

# Limit for decoded bytes of matrices from HDF5 files, in the memory of each rank.
MOST_FILE_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryMatrix:
    """A matrix of an AnnData in memory, or of an HDF5 file, which is read into memory as a whole on first use."""

    place: str
    shape: tuple[int, ...]  # rows, then the shape of one
    dtype: DType
    num_elements: int | None  # stored elements of a sparse one; None = it is dense
    identity: str  # hash of the row names
    is_file: bool  # whether it is still in a file
    load: Callable[[], Any]  # returns it: a NumPy array, or a SciPy sparse matrix

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "values"}

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

    @property
    def chunk_rows(self) -> int:
        """1: rows in memory need no locality."""
        return 1

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row."""
        if self.num_elements is None:
            return math.prod(self.row_shape) * self.dtype.itemsize
        return self.num_elements / max(1, self.num_rows) * (self.dtype.itemsize + 4)

    @property
    def fingerprint(self) -> str:
        """Hash of the names of its rows, and of its metadata."""
        facts = ["held", self.shape, self.dtype.str, self.num_elements, self.identity]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

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


class MemoryStack(MatrixStack):
    """Matrices in memory, all sparse or all dense; with `loose` each has its own columns, up to the longest."""

    matrices: tuple[MemoryMatrix, ...]

    def __init__(self, matrices: Sequence[MemoryMatrix], dtype: DType, *, loose: bool = False) -> None:
        for matrix in matrices:
            check_conversion(matrix.dtype, dtype, scaled=False, place=matrix.place)
            warn_lossy_conversion(matrix.place, matrix.dtype, dtype)
        shape = max(matrix.row_shape for matrix in matrices) if loose else matrices[0].row_shape
        super().__init__(matrices, FieldSpec(shape=shape, dtype=dtype, ragged=matrices[0].num_elements is not None))
        files = [matrix for matrix in matrices if matrix.is_file]
        size = sum(matrix.row_bytes * matrix.num_rows for matrix in files)
        if size > MOST_FILE_BYTES:
            raise ConfigError(
                f"{files[0].place}{' and others' * (len(files) > 1)} would need {size / 1e9:.3g} GB of every rank's "
                f"memory; HDF5 files of up to {MOST_FILE_BYTES / 1e9:.2g} GB are read into it. Write them to a "
                "collection once, `rankwise rows write COLLECTION.zarr FILE.h5ad`, or pass anndata.read_h5ad(FILE) if "
                "it fits into memory"
            )

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        del reader  # nothing is decoded
        which, local = self.find(rows)
        if not self.spec.ragged:
            return MatrixPlan(boxes=(), lengths=None, num_rows=len(rows), in_memory=rows)
        lengths = np.empty(len(rows), dtype=np.int64)
        for number in np.unique(which).tolist():
            indptr, mine = self.matrices[number].values.indptr, local[which == number]
            lengths[which == number] = indptr[mine + 1] - indptr[mine]
        return MatrixPlan(boxes=(), lengths=lengths, num_rows=len(rows), in_memory=rows)

    def take(self, rows: IntArray, out: tuple[NDArray, ...]) -> None:
        """Copy rows into arrays, as for `MatrixPlan.jobs`."""
        taken = gather_rows([matrix.values for matrix in self.matrices], self._ends, rows)
        values = converted(taken[0], self.spec.dtype, place=self.matrices[0].place)
        for given, held in zip(out, (values, *taken[1:]), strict=True):
            given[: len(held)] = held

    def take_dense(self, rows: IntArray, columns: Sequence[IntArray] | None, out: NDArray) -> None:
        """Copy rows, dense, into an array [B, width, ...]; for `columns` see `make_field`."""
        which, local = self.find(rows)
        for number in np.unique(which).tolist():
            matrix, members = self.matrices[number], which == number
            part = matrix.values[local[members]]
            dense = part if matrix.num_elements is None else part.toarray()
            dense = converted(dense, self.spec.dtype, place=matrix.place)
            out[members] = dense if columns is None else dense[:, columns[number if len(columns) > 1 else 0]]


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
