"""One field of rows, made from the user's options: planning, reading, and writing to dense rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.matrices import (
    Finished,
    MatrixPlan,
    MatrixStack,
    MemoryStack,
    SparseStack,
    finished_plain,
    judged_reports,
)
from rankwise.data.store import BoxPlan, BoxReader, BoxReport, Spread
from rankwise.data.store.boxes import OUTSIDE, TWICE

__all__ = ["FieldRead", "RowField", "Target", "make_field", "read_fields", "spread_rows"]


class FieldRead(NamedTuple):
    """Rows of a field that are being read into a batch."""

    jobs: Sequence[tuple[BoxPlan, NDArray]]  # reads to do first, for all fields together
    finish: Callable[[tuple[BoxReport, ...]], Finished]  # makes the field from the reports of the jobs


@dataclass(frozen=True, slots=True, eq=False)
class RowField(ABC):
    """One field; thread-safe.

    Attributes:
        stack: the matrices with the rows.
    """

    stack: MatrixStack

    @property
    def spec(self) -> FieldSpec:
        """Shape and dtype of a row in batches."""
        return self.stack.spec

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        return self.stack.plan(rows, reader)

    @abstractmethod
    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], reader: BoxReader, memory: MemoryPool) -> FieldRead:
        """Return a read of rows into the arrays of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """Target positions of columns: one table for all matrices, or one for each."""

    num_cols: tuple[int, ...]  # columns of the CSR rows, one number for all matrices or one for each
    # for each of these int32[num_cols], the target of a column, `width` = drop it; None = its own number
    places: tuple[npt.NDArray[np.int32], ...] | None
    width: int  # elements of a dense row

    @classmethod
    def of(cls, columns: Sequence[IntArray] | None, num_cols: tuple[int, ...]) -> Self:
        """Return the targets of selected columns: one int64 list for all matrices, or one for each; None = all."""
        if columns is None:
            return cls(num_cols=num_cols, places=None, width=num_cols[0])
        width = len(columns[0])
        places = tuple(np.full(count, width, dtype=np.int32) for count in num_cols)
        for table, chosen in zip(places, columns, strict=True):
            table[chosen] = np.arange(width, dtype=np.int32)
        return cls(num_cols=num_cols, places=places, width=width)


@dataclass(frozen=True, slots=True, eq=False)
class _SpreadRead:
    """Writes each element to its target while decoding, after its column was decoded; columns stay in storage order."""

    plan: MatrixPlan
    out: NDArray
    target: Target
    reader: BoxReader
    memory: MemoryPool

    def finish(self, _reports: tuple[BoxReport, ...]) -> Finished:
        elements, named = self.plan.boxes
        target, columns = self.target, self.memory.take(self.plan.num_elements, named.request.dtype)
        spread = Spread(columns=columns, num_cols=target.num_cols, places=target.places, width=target.width)
        reports, states = self.reader.spread((elements, named), self.out, spread)
        valid = reports[0].valid & reports[1].valid
        again = self._again(np.flatnonzero(((states & TWICE) != 0) & valid))
        outside = (states & OUTSIDE).astype(np.bool_)
        told = judged_reports(self.plan, reports, columns)
        return Finished(reports=(*told, *again), outside=outside if outside.any() else None)

    def _again(self, places: npt.NDArray[np.int64]) -> tuple[BoxReport, ...]:
        """Read rows with a duplicate column again, to add up its elements: our writers never make such rows."""
        if not len(places):
            return ()
        part = self.plan.part(places, self.reader)
        out = np.empty((len(places), self.out.shape[1]), dtype=self.out.dtype)
        between = _Between(part, out, self.target, self.memory)
        reports = between.finish(self.reader.read(between.jobs)).reports
        self.out[places] = out
        return tuple(_moved(report, places, len(self.out)) for report in reports)


class _Between:
    """Reads all rows as CSR first, then writes them to dense rows."""

    def __init__(self, plan: MatrixPlan, out: NDArray, target: Target, memory: MemoryPool) -> None:
        self._plan, self._out, self._target = plan, out, target
        dtypes = [box.request.dtype for box in plan.boxes] or [out.dtype, np.dtype(np.int32)]
        parts = [memory.take(plan.num_elements, dtype) for dtype in dtypes]
        self._arrays = (*parts, np.zeros(plan.num_rows + 1, dtype=np.int64))
        self.jobs = plan.jobs(self._arrays)

    def finish(self, reports: tuple[BoxReport, ...]) -> Finished:
        data, columns, indptr = self._arrays
        reports = judged_reports(self._plan, reports, columns)
        target, num_cols = self._target, self._target.num_cols[0]
        places = None if target.places is None else target.places[0]
        if len(target.num_cols) > 1 and self._plan.boxes:
            columns, num_cols, places = self._side_by_side(columns, np.diff(indptr))
        outside = spread_rows(data, columns, indptr, num_cols=num_cols, places=places, out=self._out)
        return Finished(reports=reports, outside=outside if outside.any() else None)

    def _side_by_side(self, columns: NDArray, lengths: IntArray) -> tuple[NDArray, int, npt.NDArray[np.int32]]:
        """Number the columns of all matrices consecutively, so that one table of targets serves all rows."""
        assert self._target.places is not None
        widths = np.array(self._target.num_cols)
        first = np.concatenate([[0], np.cumsum(widths)])
        which = self._plan.boxes[0].request.which
        outside = (columns < 0) | (columns >= np.repeat(widths[which], lengths))
        moved = columns + np.repeat(first[which], lengths)
        moved[outside] = first[-1]
        return moved, int(first[-1]), np.concatenate(self._target.places)


def _moved(report: BoxReport, places: npt.NDArray[np.int64], num_rows: int) -> BoxReport:
    """Turn the report of rows that were read again into one for the whole batch; their chunks already counted."""
    errors = tuple(replace(error, box=int(places[error.box])) for error in report.errors)
    valid, none = np.ones(num_rows, dtype=np.bool_), np.zeros(num_rows, dtype=np.bool_)
    valid[places] = report.valid
    return BoxReport(valid=valid, errors=errors, missing_boxes=none, fill_boxes=none, lost_boxes=none)


def spread_rows(
    data: NDArray,
    indices: NDArray,
    indptr: NDArray,
    *,
    num_cols: int,
    places: npt.NDArray[np.int32] | None,
    out: NDArray,
) -> BoolArray:
    """Write CSR rows into dense rows; elements with the same column are added up.

    The general method, for reads that cannot use `BoxReader.spread`.

    Args:
        data: [nnz], of the dtype of `out`.
        indices: [nnz], columns, integers.
        indptr: [B + 1].
        num_cols: columns of the CSR rows.
        places: int32[num_cols], target of each column in a dense row, its width = drop it; None = its own number.
        out: [B, width]; overwritten completely.

    Returns:
        bool[B]: rows with an invalid column number, which is skipped.
    """
    out[...] = 0
    outside: BoolArray = np.zeros(len(out), dtype=np.bool_)
    rows = np.repeat(np.arange(len(out)), np.diff(indptr))
    known = (indices >= 0) & (indices < num_cols)
    outside[rows[~known]] = True
    columns = np.where(known, indices, 0).astype(np.int64)
    at = columns if places is None else places[columns]
    chosen = known & (at < out.shape[1])
    add = np.logical_or if out.dtype.kind == "b" else np.add
    add.at(out, (rows[chosen], at[chosen]), data[chosen])
    return outside


def make_field(
    stack: MatrixStack, *, dense: bool, columns: Sequence[IntArray] | None, widths: Sequence[int] = ()
) -> RowField:
    """Return the field of a stack; `dense` returns CSR rows as dense ones.

    `columns` are one int64 list for all matrices, or one for each, which needs the `widths` of the matrices; None =
    all.
    """
    if isinstance(stack, MemoryStack):
        return _InMemory(stack, None if columns is None else tuple(columns), dense)
    if not isinstance(stack, SparseStack):
        return _Plain(stack) if columns is None else _Taken(stack, tuple(columns))
    if columns is None and not dense:
        return _Plain(stack)
    return _Spread(stack, Target.of(columns, tuple(widths) or stack.spec.shape))


class _Plain(RowField):
    """Rows as stored, dense or CSR."""

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], _reader: BoxReader, _memory: MemoryPool) -> FieldRead:
        return FieldRead(plan.jobs(out), partial(finished_plain, plan, out, self.stack.spec))


@dataclass(frozen=True, slots=True, eq=False)
class _Taken(RowField):
    """Selected columns of dense rows, the same for all matrices or one list for each; later axes are unchanged."""

    columns: tuple[IntArray, ...]

    @property
    def spec(self) -> FieldSpec:
        whole = self.stack.spec
        return replace(whole, shape=(len(self.columns[0]), *whole.shape[1:]))

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], _reader: BoxReader, memory: MemoryPool) -> FieldRead:
        shape = (plan.num_rows, *self.stack.spec.shape)
        between = memory.take(math.prod(shape), self.stack.spec.dtype).reshape(shape)

        def finish(reports: tuple[BoxReport, ...]) -> Finished:
            if len(self.columns) == 1:  # without a mode, take() would make a copy first
                np.take(between, self.columns[0], axis=1, out=out[0], mode="clip")
            elif plan.boxes:
                places = np.stack(self.columns)[plan.boxes[0].request.which]
                places = places.reshape(*places.shape, *[1] * (between.ndim - 2))
                out[0][...] = np.take_along_axis(between, places, axis=1)
            return Finished(reports=reports)

        return FieldRead(plan.jobs((between,)), finish)


@dataclass(frozen=True, slots=True, eq=False)
class _Spread(RowField):
    """CSR rows as dense rows, all columns or selected ones."""

    stack: SparseStack
    target: Target

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(shape=(self.target.width,), dtype=self.stack.spec.dtype)

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        return self.stack.plan(rows, reader, to_spread=True)

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], reader: BoxReader, memory: MemoryPool) -> FieldRead:
        if plan.to_spread:
            return FieldRead((), _SpreadRead(plan, out[0], self.target, reader, memory).finish)
        between = _Between(plan, out[0], self.target, memory)
        return FieldRead(between.jobs, between.finish)


@dataclass(frozen=True, slots=True, eq=False)
class _InMemory(RowField):
    """Rows in memory, as they are or dense, all columns or selected ones."""

    stack: MemoryStack
    columns: tuple[IntArray, ...] | None
    dense: bool

    @property
    def spec(self) -> FieldSpec:
        whole = self.stack.spec
        if self.columns is None:
            return replace(whole, ragged=whole.ragged and not self.dense)
        return FieldSpec(shape=(len(self.columns[0]), *whole.shape[1:]), dtype=whole.dtype)

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        plan = self.stack.plan(rows, reader)
        return plan if self.spec.ragged else replace(plan, lengths=None)

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], _reader: BoxReader, _memory: MemoryPool) -> FieldRead:
        def finish(reports: tuple[BoxReport, ...]) -> Finished:
            assert plan.in_memory is not None
            if self.spec.ragged:
                self.stack.take(plan.in_memory, out)
            else:
                self.stack.take_dense(plan.in_memory, self.columns, out[0])
            return Finished(reports=reports)

        return FieldRead(plan.jobs(out), finish)


def read_fields(
    fields: Mapping[str, RowField],
    plans: Mapping[str, MatrixPlan],
    arrays: Mapping[str, tuple[NDArray, ...]],
    reader: BoxReader,
    memory: MemoryPool,
) -> dict[str, Finished]:
    """Read rows into the arrays of a batch; errors of rows are returned, not raised."""
    begun = {name: field.begin(plans[name], arrays[name], reader, memory) for name, field in fields.items()}
    jobs = [job for one in begun.values() for job in one.jobs]
    reports = reader.read(jobs) if jobs else ()
    done: dict[str, Finished] = {}
    for name, one in begun.items():
        mine, reports = reports[: len(one.jobs)], reports[len(one.jobs) :]
        done[name] = one.finish(mine)
    return done
