"""Rows of a plan into a batch: matrices straight into it or by way of scratch memory, columns of obs beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, OrderState, ReadReport, Share, Step, shares
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.csr import one_row
from rankwise.data.feed.memory import MemoryPool
from rankwise.data.rows.failing import RowErrors
from rankwise.data.rows.fields import RowField, read_fields
from rankwise.data.rows.obs import ObsColumn
from rankwise.data.rows.plans import RowPlan
from rankwise.data.rows.transforms import Log1pCounts
from rankwise.data.store import BoxReader

__all__ = ["RowFields", "Shelf", "read_one"]

_PIECES_PER_FIELD = 4


class Shelf:
    """Memory for rows on their way to another shape: a pool for each thread that reads at a time, used again."""

    def __init__(self) -> None:
        self._held: list[MemoryPool] = []

    def __reduce__(self) -> tuple[type[Shelf], tuple[()]]:
        return Shelf, ()

    @contextmanager
    def memory(self, num_pieces: int) -> Iterator[MemoryPool]:
        """Lend a pool, a new one of so many pieces where none is left."""
        try:
            lent = self._held.pop()
        except IndexError:
            lent = MemoryPool(num_pieces)
        try:
            yield lent
        finally:
            self._held.append(lent)

    def clear(self) -> None:
        """Give the memory back."""
        self._held.clear()


def read_one(
    sample: int, specs: Mapping[str, FieldSpec], read: Callable[[Share, BatchBuffer], ReadReport]
) -> dict[str, Any]:
    """Return the fields of one sample, in memory of its own.

    Raises:
        SampleError: it cannot be read.
    """
    ids = np.array([sample], dtype=np.int64)
    state = OrderState(seed=0, epoch=0, position=1, recipe="")
    step = Step(epoch=0, index=0, start=0, count=1, ids=ids, lanes=np.zeros_like(ids), resume=state)
    buffer = HostBuffer()
    for error in read(shares(step, rank=0, world_size=1, num_micro=1)[0], buffer).errors:
        raise error
    widths = {name: spec.shape[0] if spec.ragged else None for name, spec in specs.items()}
    return {name: one_row(buffer.arrays(name), 0, width) for name, width in widths.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFields:
    """The fields that are read of a row, by name.

    Attributes:
        matrices: those out of matrices.
        columns: those out of obs.
        change: what becomes of the rows of one of them, dense, before they are handed over; None = nothing.
    """

    matrices: Mapping[str, RowField]
    columns: Mapping[str, ObsColumn]
    change: Log1pCounts | None = None

    @property
    def specs(self) -> dict[str, FieldSpec]:
        """What a row is, matrices first."""
        found = {name: field.spec for name, field in self.matrices.items()}
        return found | {name: column.spec for name, column in self.columns.items()}

    def read(self, plan: RowPlan, into: BatchBuffer, reader: BoxReader, errors: RowErrors, shelf: Shelf) -> ReadReport:
        """Read a plan into a buffer, which it reserves. Thread-safe.

        Args:
            plan: what to read.
            into: where to.
            reader: reads it.
            errors: is told which rows fail.
            shelf: lends memory.
        """
        into.reserve(self.specs, plan.share.num_samples, plan.capacity)
        arrays = {name: into.arrays(name) for name in self.matrices}
        with shelf.memory(_PIECES_PER_FIELD * len(self.matrices)) as memory:
            done = read_fields(self.matrices, plan.matrices, arrays, reader, memory)
        reports = [report for finished in done.values() for report in finished.reports]
        lost = (matrix.lost for matrix in plan.matrices.values())
        gaps = (finished.gaps for finished in done.values())
        for error in chain(*lost, *(report.errors for report in reports), *gaps):
            errors.add(error)
        for name, finished in done.items():
            if finished.outside is not None:
                errors.add_outside(np.flatnonzero(finished.outside), name, self.matrices[name].stack.spec.shape[0])
        for name, column in self.columns.items():
            column.take(plan.rows, into.arrays(name)[0])
        if self.change is not None:
            sizes = None if self.change.size is None else into.arrays(self.change.size)[0]
            self.change.change(arrays[self.change.field][0], sizes)
        return errors.summed(reports)
