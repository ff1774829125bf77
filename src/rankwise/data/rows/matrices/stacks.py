"""`MatrixStack`: concatenated matrices of several datasets; `MatrixPlan`: the plan for reading some of their rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray, NDArray
from rankwise.data.rows.matrices.matrix import MemoryMatrix, StoredDense, StoredMatrix, StoredSparse, gather_rows
from rankwise.data.store import BoxError, BoxPlan, BoxReader, BoxRequest, Pad, Runs
from rankwise.data.store.boxes import check_conversion, converted
from rankwise.data.store.execution.failures import warn_lossy_conversion
from rankwise.errors import ConfigError

# Limit for decoded bytes of matrices from HDF5 files, in the memory of each rank.
MOST_FILE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixPlan:
    """A plan for rows of one stack; made by `MatrixStack.plan`, read together with others by one reader.

    Attributes:
        boxes: the engine's plans: one for a dense stack, two for a CSR stack (elements and columns). Empty if the
            rows have no elements.
        lengths: for a CSR stack, int64[n]: elements of each row; None for a dense one.
        num_rows: rows.
        to_spread: whether elements and columns are read for `BoxReader.spread`. Columns then have the dtype that it
            needs. If they go through memory, because their chunks differ from those of the elements, both are in
            storage order instead of row order.
        lost: errors of rows whose location is unknown; such rows have no elements here.
        in_memory: for a stack in memory, int64[n], the rows: they need no reading.
    """

    boxes: tuple[BoxPlan, ...]
    lengths: IntArray | None
    num_rows: int
    to_spread: bool = False
    lost: tuple[BoxError, ...] = ()
    in_memory: IntArray | None = None

    @property
    def num_elements(self) -> int:
        """Stored elements of all rows of a CSR stack; 0 for a dense one."""
        return 0 if self.lengths is None else int(self.lengths.sum())

    def jobs(self, arrays: Sequence[NDArray]) -> list[tuple[BoxPlan, NDArray]]:
        """Return the reader's jobs, and fill in the row pointers of a CSR stack.

        Args:
            arrays: targets: [n, *row shape] for a dense stack; data[>= nnz], indices[>= nnz] and indptr[n + 1]
                for a CSR one, all C-contiguous.
        """
        if self.lengths is None:
            return [(plan, arrays[0].reshape(plan.request.out_shape)) for plan in self.boxes]
        indptr = arrays[2]
        indptr[0] = 0
        np.cumsum(self.lengths, out=indptr[1:])
        nnz = int(indptr[-1])
        return [(plan, array[:nnz]) for plan, array in zip(self.boxes, arrays, strict=False)]

    def part(self, places: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for some of the rows of a CSR stack: places int64[m] in these rows."""
        assert self.lengths is not None
        lengths = self.lengths[places]
        requests = (
            replace(
                box.request,
                which=box.request.which[places],
                starts=box.request.starts[places],
                runs=Runs.packed(lengths),
            )
            for box in self.boxes
        )
        return MatrixPlan(
            boxes=tuple(reader.plan(request) for request in requests), lengths=lengths, num_rows=len(places)
        )


class MatrixStack(ABC):
    """Concatenated rows of matrices of one kind; thread-safe.

    Attributes:
        num_rows: rows of all matrices together.
        chunk_rows: number of neighbouring rows that are stored together: the largest of all matrices.
        row_bytes: average decoded bytes of a row over all matrices.
    """

    matrices: tuple[StoredMatrix | MemoryMatrix, ...]

    def __init__(self, matrices: Sequence[StoredMatrix | MemoryMatrix], spec: FieldSpec) -> None:
        self.matrices, self.spec = tuple(matrices), spec
        self._ends: IntArray = np.cumsum([matrix.num_rows for matrix in matrices], dtype=np.int64)
        self.num_rows = int(self._ends[-1])
        self.chunk_rows = max(matrix.chunk_rows for matrix in matrices)
        self.row_bytes = sum(matrix.row_bytes * matrix.num_rows for matrix in matrices) / max(1, self.num_rows)

    @abstractmethod
    def plan(self, rows: IntArray, reader: BoxReader, *, dense: bool = False) -> MatrixPlan:
        """Return the plan for reading rows.

        Args:
            rows: int64[n], rows of the stack in any order, duplicates allowed.
            reader: reads them.
            dense: whether CSR rows will become dense ones; see `MatrixPlan.to_spread`.

        Raises:
            IndexError: there is no such row.
            DataError: the storage of row pointers fails; damage is reported in `MatrixPlan.lost`.
        """

    def find(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the matrix of each row and its row there, int64[n] twice."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_rows):
            raise IndexError(f"rows {rows.min()} to {rows.max()} were requested, but there are {self.num_rows}")
        if len(self.matrices) == 1:
            return np.zeros(len(rows), dtype=np.int64), rows
        which: IntArray = np.searchsorted(self._ends, rows, side="right")
        first = np.concatenate([[0], self._ends[:-1]])
        return which, rows - first[which]


def stack_matrices(
    matrices: Sequence[StoredMatrix | MemoryMatrix], *, dtype: DType | None = None, side_by_side: bool = False
) -> MatrixStack:
    """Concatenate matrices.

    Args:
        matrices: at least one; all CSR with equally many columns, or all dense with one row shape.
        dtype: dtype of the elements to return; None = one to which all can be converted without loss.
        side_by_side: let each matrix have its own columns. The spec of CSR rows then has room for all columns side by
            side, but rows keep the column numbers of their matrix. Dense rows are as long as the longest, and end in
            fill values.

    Raises:
        ConfigError: they do not fit together.
    """
    if not matrices:
        raise ConfigError("a stack needs at least one matrix, got none")
    held = [isinstance(matrix, MemoryMatrix) for matrix in matrices]
    if any(held) and not all(held):
        raise ConfigError(
            f"{matrices[held.index(True)].place} is in memory and {matrices[held.index(False)].place} in a store: "
            "write them to one collection (rankwise rows write), or load all of them into memory"
        )
    sparse = [
        matrix.num_elements is not None if isinstance(matrix, MemoryMatrix) else isinstance(matrix, StoredSparse)
        for matrix in matrices
    ]
    if any(sparse) and not all(sparse):
        names = {True: "CSR", False: "dense"}
        listing = ", ".join(f"{matrix.place} is {names[kind]}" for matrix, kind in zip(matrices, sparse, strict=True))
        raise ConfigError(f"the matrices of all datasets must be of one kind; {listing}")
    shapes = {matrix.row_shape for matrix in matrices}
    inner = {shape[1:] for shape in shapes} if side_by_side and all(shapes) else shapes
    if len(inner) > 1:
        listing = ", ".join(f"{matrix.place} has {list(matrix.row_shape)}" for matrix in matrices)
        raise ConfigError(
            f"the rows of all datasets must have one shape; {listing}: write them to one collection, which joins them"
        )
    chosen = np.result_type(*(matrix.dtype for matrix in matrices)) if dtype is None else np.dtype(dtype)
    if all(held):
        return MemoryStack(cast("Sequence[MemoryMatrix]", matrices), chosen, loose=side_by_side)
    if all(sparse):
        return SparseStack(cast("Sequence[StoredSparse]", matrices), chosen, side_by_side=side_by_side)
    return DenseStack(cast("Sequence[StoredDense]", matrices), chosen)


class SparseStack(MatrixStack):
    """CSR matrices with equally many columns, or their own; see `stack_matrices`."""

    matrices: tuple[StoredSparse, ...]

    def __init__(self, matrices: Sequence[StoredSparse], dtype: DType, *, side_by_side: bool = False) -> None:
        widths = [matrix.shape[1] for matrix in matrices]
        num_cols = sum(widths) if side_by_side else widths[0]
        super().__init__(matrices, FieldSpec(shape=(num_cols,), dtype=dtype, ragged=True))
        short = all(np.can_cast(matrix.indices.dtype, np.uint16) for matrix in matrices)
        self._column_dtype: DType = np.dtype(np.uint16) if short else self.spec.index_dtype
        self._data = tuple(matrix.data for matrix in matrices)
        self._indices = tuple(matrix.indices for matrix in matrices)
        self._one_grid = all(matrix.data.chunks == matrix.indices.chunks for matrix in matrices)

    def plan(self, rows: IntArray, reader: BoxReader, *, dense: bool = False) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        which, local = self.find(rows)
        if len(self.matrices) == 1:
            begin, lengths, lost = self.matrices[0].pointers.spans(local)
        else:
            begin, lengths, lost = np.empty_like(local), np.empty_like(local), ()
            for number in np.unique(which).tolist():
                members = np.flatnonzero(which == number)
                begin[members], lengths[members], errors = self.matrices[number].pointers.spans(local[members])
                lost += tuple(replace(error, box=int(members[error.box])) for error in errors)
        dtype, index_dtype = self.spec.dtype, self.spec.index_dtype
        to_spread = dense and reader.spreads(self._data, dtype) and index_dtype == np.int32
        if to_spread:
            index_dtype = self._column_dtype
        order = None
        if to_spread and not self._one_grid:  # by storage order, matrix by matrix
            order = np.lexsort((begin, which)) if which.any() else np.argsort(begin)  # argsort is faster
        runs = Runs.packed(lengths, order)
        if runs.num_rows == 0:
            return MatrixPlan(boxes=(), lengths=lengths, num_rows=len(rows), lost=lost)
        request = BoxRequest(arrays=self._data, which=which, starts=begin[:, None], shape=(1,), dtype=dtype, runs=runs)
        elements = reader.plan(request)
        columns = reader.plan(replace(request, arrays=self._indices, dtype=index_dtype), like=elements)
        return MatrixPlan(
            boxes=(elements, columns), lengths=lengths, num_rows=len(rows), to_spread=to_spread, lost=lost
        )


class DenseStack(MatrixStack):
    """Dense arrays with one shape beyond the axes of rows and columns; shorter rows are padded."""

    def __init__(self, matrices: Sequence[StoredDense], dtype: DType) -> None:
        self._arrays = tuple(matrix.array for matrix in matrices)
        shapes = {matrix.row_shape for matrix in matrices}
        self._pad: Pad | None = "fill" if len(shapes) > 1 else None
        super().__init__(matrices, FieldSpec(shape=max(shapes), dtype=dtype))

    def plan(self, rows: IntArray, reader: BoxReader, *, dense: bool = False) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        del dense  # they are
        which, local = self.find(rows)
        boxes: tuple[BoxPlan, ...] = ()
        if math.prod(self.spec.shape):
            starts = np.zeros((len(rows), 1 + len(self.spec.shape)), dtype=np.int64)
            starts[:, 0] = local
            shape = (1, *self.spec.shape)
            request = BoxRequest(
                arrays=self._arrays, which=which, starts=starts, shape=shape, dtype=self.spec.dtype, pad=self._pad
            )
            boxes = (reader.plan(request),)
        return MatrixPlan(boxes=boxes, lengths=None, num_rows=len(rows))


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

    def plan(self, rows: IntArray, reader: BoxReader, *, dense: bool = False) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        del reader  # nothing is decoded
        which, local = self.find(rows)
        if dense or not self.spec.ragged:
            return MatrixPlan(boxes=(), lengths=None, num_rows=len(rows), in_memory=rows)
        lengths = np.empty(len(rows), dtype=np.int64)
        for number in np.unique(which).tolist():
            indptr, mine = self.matrices[number].values.indptr, local[which == number]
            lengths[which == number] = indptr[mine + 1] - indptr[mine]
        return MatrixPlan(boxes=(), lengths=lengths, num_rows=len(rows), in_memory=rows)

    def take(self, rows: IntArray, columns: Sequence[IntArray] | None, out: tuple[NDArray, ...]) -> None:
        """Copy rows: CSR rows into their arrays, as for `MatrixPlan.jobs`, or dense ones into one [B, width, ...].

        For `columns` of dense rows see `RowField`.
        """
        if len(out) > 1:
            taken = gather_rows([matrix.values for matrix in self.matrices], self._ends, rows)
            values = converted(taken[0], self.spec.dtype, place=self.matrices[0].place)
            for given, held in zip(out, (values, *taken[1:]), strict=True):
                given[: len(held)] = held
            return
        which, local = self.find(rows)
        for number in np.unique(which).tolist():
            matrix, members = self.matrices[number], which == number
            part = matrix.values[local[members]]
            dense = part if matrix.num_elements is None else part.toarray()
            dense = converted(dense, self.spec.dtype, place=matrix.place)
            out[0][members] = dense if columns is None else dense[:, columns[number if len(columns) > 1 else 0]]
