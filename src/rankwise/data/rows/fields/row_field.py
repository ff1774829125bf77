"""`RowField`: from rows of stacked matrices to one field of a batch."""

from __future__ import annotations

from typing import Protocol

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.rows.dense import Crew
from rankwise.data.rows.matrices import MatrixStack

__all__ = ["RowField"]


class RowField(Protocol):
    """One field; thread-safe."""

    @property
    def stack(self) -> MatrixStack:
        """Where rows come from."""
        ...

    @property
    def spec(self) -> FieldSpec:
        """What batches hold of a row."""
        ...

    @property
    def is_direct(self) -> bool:
        """Whether rows are read straight into the batch; otherwise into scratch memory of ``stack.spec`` first."""
        ...

    def finish(
        self, read: tuple[NDArray, ...], out: tuple[NDArray, ...], rows: IntArray, crew: Crew
    ) -> BoolArray | None:
        """Make the field of what was read.

        Args:
            read: arrays of the stack's rows; the same as `out` where rows are read directly.
            out: arrays of the batch.
            rows: int64[B], the rows over all matrices.
            crew: shares work among threads.

        Returns:
            bool[B]: rows that name a column that there is not; None = none does.
        """
        ...
