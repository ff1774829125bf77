"""Concatenated matrices of several datasets: row i of the stack is a row of one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray
from rankwise.data.rows.matrices.in_memory import MemoryMatrix, MemoryStack
from rankwise.data.rows.matrices.on_disk import StoredDense, StoredMatrix, StoredSparse
from rankwise.data.rows.matrices.plans import MatrixPlan, MatrixStack
from rankwise.data.store import BoxError, BoxPlan, BoxReader, BoxRequest, Pad, Runs
from rankwise.errors import ConfigError

__all__ = ["DenseStack", "SparseStack", "stack_matrices"]


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
    sparse = [_is_sparse(matrix) for matrix in matrices]
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


def _is_sparse(matrix: StoredMatrix | MemoryMatrix) -> bool:
    return matrix.num_elements is not None if isinstance(matrix, MemoryMatrix) else isinstance(matrix, StoredSparse)


class SparseStack(MatrixStack):
    """CSR matrices with equally many columns, or their own; see `stack_matrices`."""

    matrices: tuple[StoredSparse, ...]

    def __init__(self, matrices: Sequence[StoredSparse], dtype: DType, *, side_by_side: bool = False) -> None:
        num_cols = sum(matrix.num_cols for matrix in matrices) if side_by_side else matrices[0].num_cols
        super().__init__(matrices, FieldSpec(shape=(num_cols,), dtype=dtype, ragged=True))
        short = all(np.can_cast(matrix.indices.dtype, np.uint16) for matrix in matrices)
        self._column_dtype: DType = np.dtype(np.uint16) if short else self.spec.index_dtype
        self._data = tuple(matrix.data for matrix in matrices)
        self._indices = tuple(matrix.indices for matrix in matrices)
        self._one_grid = all(matrix.data.chunks == matrix.indices.chunks for matrix in matrices)

    def plan(self, rows: IntArray, reader: BoxReader, *, to_spread: bool = False) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`, and for `to_spread` `MatrixPlan`."""
        which, local = self.find(rows)
        begin, lengths, lost = self._spans(which, local)
        dtype, index_dtype = self.spec.dtype, self.spec.index_dtype
        to_spread = to_spread and reader.spreads(self._data, dtype) and index_dtype == np.int32
        if to_spread:
            index_dtype = self._column_dtype
        in_order = to_spread and not self._one_grid
        runs = Runs.packed(lengths, _stored_order(which, begin) if in_order else None)
        if runs.num_rows == 0:
            return MatrixPlan(boxes=(), lengths=lengths, num_rows=len(rows), lost=lost)
        request = BoxRequest(arrays=self._data, which=which, starts=begin[:, None], shape=(1,), dtype=dtype, runs=runs)
        elements = reader.plan(request)
        columns = reader.plan(replace(request, arrays=self._indices, dtype=index_dtype), like=elements)
        return MatrixPlan(
            boxes=(elements, columns), lengths=lengths, num_rows=len(rows), to_spread=to_spread, lost=lost
        )

    def _spans(self, which: IntArray, local: IntArray) -> tuple[IntArray, IntArray, tuple[BoxError, ...]]:
        if len(self.matrices) == 1:
            return self.matrices[0].pointers.spans(local)
        begin, lengths = np.empty(len(local), dtype=np.int64), np.empty(len(local), dtype=np.int64)
        lost: list[BoxError] = []
        for number in np.unique(which).tolist():
            members = np.flatnonzero(which == number)
            begin[members], lengths[members], errors = self.matrices[number].pointers.spans(local[members])
            lost += [replace(error, box=int(members[error.box])) for error in errors]
        return begin, lengths, tuple(lost)


class DenseStack(MatrixStack):
    """Dense arrays with one shape beyond the axes of rows and columns; shorter rows are padded."""

    def __init__(self, matrices: Sequence[StoredDense], dtype: DType) -> None:
        self._arrays = tuple(matrix.array for matrix in matrices)
        shapes = {matrix.row_shape for matrix in matrices}
        self._pad: Pad | None = "fill" if len(shapes) > 1 else None
        super().__init__(matrices, FieldSpec(shape=max(shapes), dtype=dtype))

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
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


def _stored_order(which: IntArray, begin: IntArray) -> IntArray:
    """Return the indices that sort rows by storage order, matrix by matrix."""
    return np.lexsort((begin, which)) if which.any() else np.argsort(begin)  # argsort is faster
