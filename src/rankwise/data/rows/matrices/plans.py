"""`MatrixPlan`: the plan for reading some rows of stacked matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store import BoxError, BoxPlan, BoxReader, Runs

__all__ = ["MatrixPlan"]


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
        held: for a stack in memory, int64[n], the rows: they need no reading.
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
        """Return the plan for some of the rows of a CSR stack.

        Args:
            places: int64[m], which of the rows.
            reader: reads them.
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
