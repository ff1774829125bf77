"""Concatenated matrices of AnnData stores, read by row."""

from __future__ import annotations

from rankwise.data.rows.matrices.damage import Finished, checked_reports, finished_plain, row_errors
from rankwise.data.rows.matrices.matrix import (
    MemoryMatrix,
    StoredDense,
    StoredMatrix,
    StoredSparse,
    gather_rows,
    open_matrix,
)
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.rows.matrices.stacks import (
    DenseStack,
    MatrixPlan,
    MatrixStack,
    MemoryStack,
    SparseStack,
    stack_matrices,
)

__all__ = [
    "DenseStack",
    "Finished",
    "MatrixPlan",
    "MatrixStack",
    "MemoryMatrix",
    "MemoryStack",
    "RowPointers",
    "SparseStack",
    "StoredDense",
    "StoredMatrix",
    "StoredSparse",
    "checked_reports",
    "finished_plain",
    "gather_rows",
    "open_matrix",
    "row_errors",
    "stack_matrices",
]
