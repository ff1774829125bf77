"""Concatenated matrices of AnnData stores, read by row."""

from __future__ import annotations

from rankwise.data.rows.matrices.damage import Finished, RowErrors, find_gaps, finished_plain, stray_columns
from rankwise.data.rows.matrices.held import HeldMatrix, HeldStack, gather_rows
from rankwise.data.rows.matrices.plans import MatrixPlan, MatrixStack
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.rows.matrices.stacks import DenseStack, SparseStack, stack_matrices
from rankwise.data.rows.matrices.stored import StoredDense, StoredMatrix, StoredSparse, open_matrix

__all__ = [
    "DenseStack",
    "Finished",
    "HeldMatrix",
    "HeldStack",
    "MatrixPlan",
    "MatrixStack",
    "RowErrors",
    "RowPointers",
    "SparseStack",
    "StoredDense",
    "StoredMatrix",
    "StoredSparse",
    "find_gaps",
    "finished_plain",
    "gather_rows",
    "open_matrix",
    "stack_matrices",
    "stray_columns",
]
