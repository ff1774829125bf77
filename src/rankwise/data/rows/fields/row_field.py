"""`RowField`: from rows of stacked matrices to one field of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.feed.memory import MemoryPool
from rankwise.data.rows.matrices import MatrixPlan, MatrixStack
from rankwise.data.store import BoxError, BoxPlan, BoxReader, BoxReport

__all__ = ["FieldRead", "Finished", "RowField"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """How the rows of a field came.

    Attributes:
        reports: of all that was read for it.
        outside: bool[B], rows that name a column that there is not; None = none does.
        gaps: why rows lost elements that the store had.
    """

    reports: tuple[BoxReport, ...]
    outside: BoolArray | None = None
    gaps: Sequence[BoxError] = ()


class FieldRead(Protocol):
    """Rows of a field on their way into a batch.

    Attributes:
        jobs: what is read first, for all fields at once.
    """

    @property
    def jobs(self) -> Sequence[tuple[BoxPlan, NDArray]]:
        """What is read first, for all fields at once."""
        ...

    def finish(self, reports: tuple[BoxReport, ...]) -> Finished:
        """Make the field of what was read.

        Args:
            reports: of the jobs.
        """
        ...


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

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return how rows are read; see `MatrixStack.plan`."""
        ...

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], reader: BoxReader, memory: MemoryPool) -> FieldRead:
        """Return rows on their way.

        Args:
            plan: of this field.
            out: arrays of the batch.
            reader: reads them.
            memory: for what lies in between.
        """
        ...
