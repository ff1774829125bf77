"""`Executor`: carries out several plans at once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rankwise.data.contract import BoolArray, DType, IntArray, NDArray
from rankwise.data.store.boxes import BoxError, BoxReport, Spread, converted
from rankwise.data.store.execution.context import ReaderContext, ReaderStats
from rankwise.data.store.execution.failures import ChunkFailure, box_errors, changed_chunks, unwritten
from rankwise.data.store.execution.fast import FastChunks, States
from rankwise.data.store.execution.slabs import settled
from rankwise.data.store.execution.slow_chunks import SlowChunks
from rankwise.data.store.execution.threads import WorkCrew
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan, PaddedBox
from rankwise.errors import DataError

__all__ = ["Executor"]


class Executor:
    """Reads plans on a crew of threads."""

    def __init__(self, context: ReaderContext, crew: WorkCrew) -> None:
        self._context = context
        self._crew = crew

    @property
    def decoder_name(self) -> str:
        """The decoder in use."""
        return self._context.decoder.name

    def run(self, jobs: Sequence[tuple[BoxPlan, NDArray]]) -> tuple[tuple[BoxReport, ...], ReaderStats]:
        """Fill the outputs; return a report for each job, and the counts."""
        runs = [_Run(plan, out, self._context) for plan, out in jobs]
        self._crew.run(task for run in runs for task in run.tasks(self._crew.num_threads))
        done = [run.stats for run in runs]
        reports = tuple(run.report(stats) for run, stats in zip(runs, done, strict=True))
        return reports, functools.reduce(operator.add, done, ReaderStats())

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Whether `spread` supports plans for these arrays."""
        return self._context.spreads(arrays, dtype)

    def spread(
        self, plans: tuple[BoxPlan, BoxPlan], out: NDArray, spread: Spread
    ) -> tuple[tuple[BoxReport, BoxReport], States, ReaderStats]:
        """Fill dense rows; return reports, the marks on the columns of each row, and the counts."""
        plan = plans[0]
        pieces = np.bincount(plan.targets.box, minlength=len(plan.request))
        elements, columns = _Run(plan, out, self._context, spread), _Run(plans[1], spread.columns, self._context)
        out[pieces != 1] = 0
        num_threads = self._crew.num_threads
        pair = _same_targets(columns, elements)
        if pair is not None:  # slab by slab: no thread waits for columns of other slabs
            slabs = pair[1].slabs(num_threads)
            self._crew.run(partial(_run_all, [part.task(*slab) for part in pair]) for slab in slabs)
        else:
            self._crew.run(columns.tasks(num_threads))
            self._crew.run(elements.tasks(num_threads))
        states = settled(elements.states(), plan, np.flatnonzero(pieces[plan.targets.box] > 1), spread)
        done = elements.stats, columns.stats
        return (elements.report(done[0]), columns.report(done[1])), states, done[0] + done[1]


class _Run:
    """One plan being read into one output."""

    def __init__(self, plan: BoxPlan, out: NDArray, context: ReaderContext, spread: Spread | None = None) -> None:
        self.plan = plan
        self._out = out
        self._array_check = context.array_check
        self._unfilled = _prefill(plan, out)
        fast, slow = _split(plan)
        self._parts: list[FastChunks | SlowChunks] = [FastChunks(plan, chosen, out, context, spread) for chosen in fast]
        if len(slow):
            self._parts.append(SlowChunks(plan, slow, out, context))
        self._padded = [_PaddedRead(padded, plan, context) for padded in plan.padded]

    def tasks(self, num_threads: int) -> Iterator[Callable[[], None]]:
        for part in self._parts:
            yield from part.tasks(num_threads)
        for padded in self._padded:
            yield from padded.run.tasks(num_threads)

    @property
    def only(self) -> FastChunks | None:
        """All chunks if one decoder takes all of them, else None."""
        part = self._parts[0] if self._parts else None
        return part if isinstance(part, FastChunks) and part.num_chunks == len(self.plan.chunks) else None

    def states(self) -> States:
        """The decoder's marks on the columns of each row of a spread, uint8[B]."""
        states = np.zeros(len(self.plan.request), dtype=np.uint8)
        for part in self._parts:
            if isinstance(part, FastChunks):
                np.bitwise_or.at(states, *part.marked)
        return states

    @property
    def stats(self) -> ReaderStats:
        own = ReaderStats(fill_chunks=int((self.plan.chunks.offset == -1).sum()), targets=len(self.plan.targets.box))
        parts = [part.stats for part in self._parts] + [padded.run.stats for padded in self._padded]
        return functools.reduce(operator.add, parts, own)

    def report(self, stats: ReaderStats) -> BoxReport:
        """Return the report, after the counts."""
        failed: dict[int, ChunkFailure] = {}
        for part in self._parts:
            failed |= part.failed
        failed |= changed_chunks(self.plan, self._array_check)
        absent = [part.absent for part in self._parts if isinstance(part, FastChunks)]
        boxes = unwritten(self.plan, np.concatenate([np.empty(0, dtype=np.int64), *absent]))
        errors = list({error.box: error for error in (*self._unfilled, *box_errors(self.plan, failed))}.values())
        for padded in self._padded:
            errors += padded.finish(self._out, boxes)
        valid = np.ones(len(self.plan.request), dtype=np.bool_)
        valid[[error.box for error in errors]] = False
        return BoxReport(
            valid=valid,
            errors=tuple(sorted(errors, key=lambda error: error.box)),
            fill_chunks=stats.fill_chunks,
            fast_chunks=stats.fast_chunks,
            slow_chunks=stats.slow_chunks,
            cached_chunks=stats.cached_chunks,
            missing_boxes=boxes[0],
            fill_boxes=boxes[1] & valid,
            lost_boxes=boxes[2],
        )


def _same_targets(columns: _Run, elements: _Run) -> tuple[FastChunks, FastChunks] | None:
    """Return the chunks of both if chunk k of one always has the targets of chunk k of the other."""
    if columns.plan.targets is not elements.plan.targets or columns.only is None or elements.only is None:
        return None
    return columns.only, elements.only


def _run_all(tasks: Iterable[Callable[[], None]]) -> None:
    for task in tasks:
        task()


class _PaddedRead:
    """A box that is made from a region inside its array."""

    def __init__(self, padded: PaddedBox, plan: BoxPlan, context: ReaderContext) -> None:
        self._padded = padded
        self._region = np.empty((1, *padded.plan.request.shape), dtype=plan.request.dtype)
        self.run = _Run(padded.plan, self._region, context)

    def finish(self, out: NDArray, boxes: tuple[BoolArray, ...]) -> list[BoxError]:
        """Assemble the box; return its errors."""
        box, report = self._padded.box, self.run.report(self.run.stats)
        for flags, mine in zip(boxes, (report.missing_boxes, report.fill_boxes, report.lost_boxes), strict=True):
            flags[box] = mine[0]
        out[box] = self._region[0][np.ix_(*self._padded.picks)]
        return [replace(error, box=box) for error in report.errors]


def _prefill(plan: BoxPlan, out: NDArray) -> list[BoxError]:
    """Fill boxes that extend beyond their array with the fill value; return an error for each that it does not fit."""
    request = plan.request
    errors: list[BoxError] = []
    for box in np.flatnonzero(plan.filled).tolist():
        which = int(request.which[box])
        place = request.arrays[which].place
        try:
            out[box] = converted(
                np.full(1, request.arrays[which].fill_value, dtype=request.arrays[which].dtype),
                request.dtype,
                scale=None if request.scale is None else float(request.scale[which]),
                offset=None if request.offset is None else float(request.offset[which]),
                place=f"the fill value of {place}",
            )[0]
        except DataError as error:
            errors.append(BoxError(box=box, place=place, error=error, damage=False))
    return errors


def _split(plan: BoxPlan) -> tuple[list[IntArray], IntArray]:
    """Return the readable chunks: for our decoders by stored dtype (missing ones included), and for zarr-python."""
    metas, chunks = plan.request.arrays, plan.chunks
    exotic = np.array([meta.codec.kind == "zarr" for meta in metas], dtype=np.bool_)[chunks.array]
    dtypes = sorted({meta.dtype for meta in metas}, key=str)
    dtype = np.array([dtypes.index(meta.dtype) for meta in metas], dtype=np.int64)[chunks.array]
    slow = exotic & (chunks.offset >= 0)
    fast = ~slow & (chunks.offset >= -1)
    groups = [np.flatnonzero(fast & (dtype == k)) for k in range(len(dtypes))]
    return [group for group in groups if len(group)], np.flatnonzero(slow)
