"""`MatrixPlan`: how some rows of stacked matrices are read, before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store import BoxError, BoxPlan, BoxReader, Runs

__all__ = ["MatrixPlan"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixPlan:
    """Rows of one stack on their way; made by `MatrixStack.plan`, read together with others by one reader.

    Attributes:
        boxes: what the engine reads: of a dense stack one plan, of a CSR stack those of elements and columns. A stack
            whose rows have no elements has none.
        lengths: of a CSR stack, int64[n]: elements of each row; None for a dense one.
        num_rows: rows.
        to_spread: whether elements and columns come out for `BoxReader.spread`: columns in the dtype that is wanted
            there, and, where their chunks are not those of the elements, so that they go through memory, both in the
            order in which they are stored instead of that of the rows.
        lost: why it is not known where some rows lie; they have no elements here.
        held: of a stack in memory, int64[n], the rows: nothing is read for them.
    """

    boxes: tuple[BoxPlan, ...]
    lengths: IntArray | None
    num_rows: int
    to_spread: bool = False
    lost: tuple[BoxError, ...] = ()
    held: IntArray | None = None

    @property
    def num_elements(self) -> int:
        """Stored elements of all rows of a CSR stack; 0 for a dense one."""
        return 0 if self.lengths is None else int(self.lengths.sum())

    def jobs(self, arrays: Sequence[NDArray]) -> list[tuple[BoxPlan, NDArray]]:
        """Return what the reader is told, and fill in the row pointers of a CSR stack.

        Args:
            arrays: where rows go: [n, *row shape] of a dense stack; data[>= nnz], indices[>= nnz] and indptr[n + 1]
                of a CSR one, all C-contiguous.
        """
        if self.lengths is None:
            return [(plan, arrays[0].reshape(plan.request.out_shape)) for plan in self.boxes]
        indptr = arrays[2]
        indptr[0] = 0
        np.cumsum(self.lengths, out=indptr[1:])
        nnz = int(indptr[-1])
        return [(plan, array[:nnz]) for plan, array in zip(self.boxes, arrays, strict=False)]

    def part(self, places: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return how some of the rows of a CSR stack are read.

        Args:
            places: int64[m], which of the rows.
            reader: will read them.
        """
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
