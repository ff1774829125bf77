"""`MatrixStack`: concatenated matrices of several datasets; `MatrixPlan`: the plan for reading some of their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.data.store import BoxError, BoxPlan, BoxReader, Runs

__all__ = ["MatrixPlan", "MatrixStack"]


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


class _Matrix(Protocol):
    @property
    def num_rows(self) -> int: ...
    @property
    def chunk_rows(self) -> int: ...
    @property
    def row_bytes(self) -> float: ...


class MatrixStack(ABC):
    """Concatenated rows of matrices of one kind; thread-safe.

    Attributes:
        num_rows: rows of all matrices together.
        chunk_rows: number of neighbouring rows that are stored together: the largest of all matrices.
        row_bytes: average decoded bytes of a row over all matrices.
    """

    matrices: tuple[_Matrix, ...]

    def __init__(self, matrices: Sequence[_Matrix], spec: FieldSpec) -> None:
        self.matrices, self.spec = tuple(matrices), spec
        self._ends: IntArray = np.cumsum([matrix.num_rows for matrix in matrices], dtype=np.int64)
        self.num_rows = int(self._ends[-1])
        self.chunk_rows = max(matrix.chunk_rows for matrix in matrices)
        self.row_bytes = sum(matrix.row_bytes * matrix.num_rows for matrix in matrices) / max(1, self.num_rows)

    @abstractmethod
    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for reading rows.

        Args:
            rows: int64[n], rows of the stack in any order, duplicates allowed.
            reader: reads them.

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
