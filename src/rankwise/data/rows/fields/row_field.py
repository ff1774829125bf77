"""`RowField`: one field of rows: how it is planned, read, and written to dense rows; `RowPlan`: a plan of them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray, Share
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.matrices.damage import Finished, checked_reports, finished_plain
from rankwise.data.rows.matrices.stacks import MatrixPlan, MatrixStack, MemoryStack, SparseStack
from rankwise.data.store import BoxPlan, BoxReader, BoxReport, Spread
from rankwise.data.store.decode.tasks import OUTSIDE, TWICE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPlan:
    """Implements `Plan`."""

    share: Share
    rows: IntArray  # int64[B], its rows over all datasets
    matrices: Mapping[str, MatrixPlan]  # for each matrix, the plan for its rows
    boxes: Sequence[BoxPlan]  # those of all matrices
    capacity: Mapping[str, int]  # for each ragged field, the elements of the batch
    num_chunks: int  # chunks to decode, without those already in the cache
    read_bytes: int  # encoded bytes to read, as far as known in advance
    decode_bytes: int  # bytes to decode

    @classmethod
    def of(cls, share: Share, rows: IntArray, matrices: Mapping[str, MatrixPlan], reader: BoxReader) -> RowPlan:
        """Return the plan of a share, with its costs for `reader`."""
        boxes = [box for matrix in matrices.values() for box in matrix.boxes]
        capacity = {name: plan.num_elements for name, plan in matrices.items() if plan.lengths is not None}
        costs = reader.costs(boxes)
        return cls(share=share, rows=rows, matrices=matrices, boxes=boxes, capacity=capacity, **costs)


class ScratchPools:
    """Scratch memory for converting rows: one pool for each thread that reads at the same time, reused."""

    def __init__(self) -> None:
        self._held: list[MemoryPool] = []

    def __reduce__(self) -> tuple[type[ScratchPools], tuple[()]]:
        return ScratchPools, ()

    @contextmanager
    def memory(self, num_pieces: int) -> Iterator[MemoryPool]:
        """Lend a pool; make one with `num_pieces` pieces if none is free."""
        try:
            lent = self._held.pop()
        except IndexError:
            lent = MemoryPool(num_pieces)
        try:
            yield lent
        finally:
            self._held.append(lent)

    def clear(self) -> None:
        """Free the memory."""
        self._held.clear()


class FieldRead(NamedTuple):
    """Rows of a field that are being read into a batch."""

    jobs: Sequence[tuple[BoxPlan, NDArray]]  # reads to do first, for all fields together
    finish: Callable[[tuple[BoxReport, ...]], Finished]  # makes the field from the reports of the jobs


class RowField:
    """One field; thread-safe.

    Args:
        stack: the matrices with the rows.
        dense: whether to return CSR rows as dense ones.
        columns: one int64 list for all matrices, or one for each; None = all.

    Attributes:
        spec: shape and dtype of a row in batches.
    """

    def __init__(self, stack: MatrixStack, *, dense: bool, columns: Sequence[IntArray] | None) -> None:
        self.stack, self.spec, self._columns = stack, stack.spec, columns
        self._num_cols = stack.spec.shape  # columns of CSR rows, one number for all matrices or one for each
        # for each of these int32[num_cols], the target of a column in a dense row, its width = drop it; None = its own
        self._places: tuple[npt.NDArray[np.int32], ...] | None = None
        if columns is None:
            self.spec = replace(stack.spec, ragged=stack.spec.ragged and not dense)
            return
        width = len(columns[0])
        self.spec = FieldSpec(shape=(width, *stack.spec.shape[1:]), dtype=stack.spec.dtype)
        if isinstance(stack, SparseStack):
            if len(columns) > 1:
                self._num_cols = tuple(matrix.row_shape[0] for matrix in stack.matrices)
            self._places = tuple(np.full(count, width, dtype=np.int32) for count in self._num_cols)
            for table, chosen in zip(self._places, columns, strict=True):
                table[chosen] = np.arange(width, dtype=np.int32)

    def plan(self, rows: IntArray, reader: BoxReader) -> MatrixPlan:
        """Return the plan for reading rows; see `MatrixStack.plan`."""
        return self.stack.plan(rows, reader, dense=not self.spec.ragged)

    def begin(self, plan: MatrixPlan, out: tuple[NDArray, ...], reader: BoxReader, memory: MemoryPool) -> FieldRead:
        """Return a read of planned rows into the arrays of a batch."""
        if isinstance(self.stack, MemoryStack):
            assert plan.in_memory is not None
            self.stack.take(plan.in_memory, self._columns, out)
            return FieldRead((), lambda reports: Finished(reports=reports))
        if isinstance(self.stack, SparseStack) and not self.spec.ragged:
            if plan.to_spread:
                return FieldRead((), lambda _: self._spread(plan, out[0], reader, memory))
            return self._begin_between(plan, out[0], memory)
        if self._columns is None:
            return FieldRead(plan.jobs(out), partial(finished_plain, plan, out, self.spec))
        return self._begin_taken(self._columns, plan, out[0], memory)

    def _begin_taken(
        self, columns: Sequence[IntArray], plan: MatrixPlan, out: NDArray, memory: MemoryPool
    ) -> FieldRead:
        """Read selected columns of dense rows; later axes are unchanged."""
        shape = (plan.num_rows, *self.stack.spec.shape)
        between = memory.take(math.prod(shape), self.spec.dtype).reshape(shape)

        def finish(reports: tuple[BoxReport, ...]) -> Finished:
            if len(columns) == 1:  # without a mode, take() would make a copy first
                np.take(between, columns[0], axis=1, out=out, mode="clip")
            elif plan.boxes:
                places = np.stack(columns)[plan.boxes[0].request.which]
                places = places.reshape(*places.shape, *[1] * (between.ndim - 2))
                out[...] = np.take_along_axis(between, places, axis=1)
            return Finished(reports=reports)

        return FieldRead(plan.jobs((between,)), finish)

    def _spread(self, plan: MatrixPlan, out: NDArray, reader: BoxReader, memory: MemoryPool) -> Finished:
        """Write each element to its target while decoding; columns are decoded first, and stay in storage order."""
        elements, named = plan.boxes
        columns = memory.take(plan.num_elements, named.request.dtype)
        spread = Spread(columns=columns, num_cols=self._num_cols, places=self._places, width=out.shape[1])
        reports, states = reader.spread((elements, named), out, spread)
        told = list(checked_reports(plan, reports, columns))
        twice = np.flatnonzero(((states & TWICE) != 0) & reports[0].valid & reports[1].valid)
        if len(twice):  # read again, to add up the elements of a column: our writers never make such rows
            part = plan.part(twice, reader)
            sums = np.empty((len(twice), out.shape[1]), dtype=out.dtype)
            between = self._begin_between(part, sums, memory)
            for report in between.finish(reader.read(between.jobs)).reports:  # of these rows, for the whole batch
                errors = tuple(replace(error, box=int(twice[error.box])) for error in report.errors)
                valid, none = np.ones(len(out), dtype=np.bool_), np.zeros(len(out), dtype=np.bool_)
                valid[twice] = report.valid
                # their chunks already counted
                told.append(BoxReport(valid=valid, errors=errors, missing_boxes=none, fill_boxes=none, lost_boxes=none))
            out[twice] = sums
        outside = (states & OUTSIDE).astype(np.bool_)
        return Finished(reports=tuple(told), outside=outside if outside.any() else None)

    def _begin_between(self, plan: MatrixPlan, out: NDArray, memory: MemoryPool) -> FieldRead:
        """Read all rows as CSR first, then write them to dense rows."""
        dtypes = [box.request.dtype for box in plan.boxes] or [out.dtype, np.dtype(np.int32)]
        data, columns = (memory.take(plan.num_elements, dtype) for dtype in dtypes)
        indptr = np.zeros(plan.num_rows + 1, dtype=np.int64)

        def finish(reports: tuple[BoxReport, ...]) -> Finished:
            told = checked_reports(plan, reports, columns)
            named, num_cols = columns, self._num_cols[0]
            places = None if self._places is None else self._places[0]
            if self._places is not None and len(self._places) > 1 and plan.boxes:
                # number the columns of all matrices consecutively, so that one table of targets serves all rows
                of_element, widths = np.repeat(plan.boxes[0].request.which, np.diff(indptr)), np.array(self._num_cols)
                first = np.concatenate([[0], np.cumsum(widths)])
                named = columns + first[of_element]
                named[(columns < 0) | (columns >= widths[of_element])] = num_cols = int(first[-1])
                places = np.concatenate(self._places)
            outside = spread_rows(data, named, indptr, num_cols=num_cols, places=places, out=out)
            return Finished(reports=told, outside=outside if outside.any() else None)

        return FieldRead(plan.jobs((data, columns, indptr)), finish)


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
