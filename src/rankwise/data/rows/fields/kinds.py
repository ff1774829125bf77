"""Makes the fields of a batch from the user's options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import FieldSpec, IntArray, NDArray
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.fields.row_field import FieldRead, RowField, Target, begin_spread
from rankwise.data.rows.matrices import Finished, HeldStack, MatrixPlan, MatrixStack, finished_plain
from rankwise.data.store import BoxReader, BoxReport

__all__ = ["make_field", "read_fields"]


def make_field(
    stack: MatrixStack, *, dense: bool, columns: Sequence[IntArray] | None, widths: Sequence[int] = ()
) -> RowField:
    """Return the field of a stack; `dense` returns CSR rows as dense ones.

    `columns` are one int64 list for all matrices, or one for each, which needs the `widths` of the matrices; None =
    all.
    """
    if isinstance(stack, HeldStack):
        return _Held(stack, None if columns is None else tuple(columns), dense)
    if not stack.spec.ragged:
        return _Plain(stack) if columns is None else _Taken(stack, tuple(columns))
    if columns is None and not dense:
        return _Plain(stack)
    return _Spread(stack, Target.of(columns, tuple(widths) or stack.spec.shape))


class _Plain(RowField):
    """Rows as stored, dense or CSR."""

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], _reader: BoxReader, _memory: MemoryPool) -> FieldRead:
        return FieldRead(plan.jobs(out), lambda reports: finished_plain(plan, reports, out, self.spec))


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

    target: Target

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(shape=(self.target.width,), dtype=self.stack.spec.dtype)

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        return self.stack.plan(rows, reader, to_spread=True)

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], reader: BoxReader, memory: MemoryPool) -> FieldRead:
        return begin_spread(plan, out[0], self.target, reader, memory)


@dataclass(frozen=True, slots=True, eq=False)
class _Held(RowField):
    """Rows in memory, as they are or dense, all columns or selected ones."""

    stack: HeldStack
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
            assert plan.held is not None
            if self.spec.ragged:
                self.stack.take(plan.held, out)
            else:
                self.stack.take_dense(plan.held, self.columns, out[0])
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
    jobs = {name: list(one.jobs) for name, one in begun.items()}
    reports = iter(reader.read([job for of_field in jobs.values() for job in of_field]) if any(jobs.values()) else ())
    return {name: one.finish(tuple(next(reports) for _ in jobs[name])) for name, one in begun.items()}
