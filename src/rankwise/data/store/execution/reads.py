"""Carries out several plans at once: their chunks are read on a crew of threads, each plan into its own output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.boxes import BoxError, BoxReport, converted
from rankwise.data.store.decode.tasks import TWICE, Spread
from rankwise.data.store.execution.context import ReaderContext
from rankwise.data.store.execution.failures import ChunkFailure, box_errors, changed_chunks, unwritten
from rankwise.data.store.execution.parts import PlanPart
from rankwise.data.store.plan.planner import BoxPlan, PaddedBox
from rankwise.data.store.shard import MISSING
from rankwise.data.store.stats import ReaderStats
from rankwise.errors import DataError


def read_plans(jobs: Sequence[tuple[BoxPlan, NDArray]], reader: ReaderContext) -> tuple[BoxReport, ...]:
    """Fill the outputs; return a report for each job."""
    started = time.perf_counter()
    reads = [_PlanRead(plan, out, reader) for plan, out in jobs]
    reader.crew.run(chain.from_iterable(map(_PlanRead.tasks, reads)))
    return _finished(reads, started, reader)


def spread_rows(
    plans: tuple[BoxPlan, BoxPlan], out: NDArray, spread: Spread, reader: ReaderContext
) -> tuple[tuple[BoxReport, BoxReport], npt.NDArray[np.uint8]]:
    """Fill dense rows; return reports, and the marks on the columns of each row."""
    started = time.perf_counter()
    plan, crew = plans[0], reader.crew
    pieces = np.bincount(plan.targets.box, minlength=len(plan.request))
    elements, columns = _PlanRead(plan, out, reader, spread), _PlanRead(plans[1], spread.columns, reader)
    out[pieces != 1] = 0
    if plan.targets is plans[1].targets and elements.is_one_part and columns.is_one_part:
        # chunk k of one has the targets of chunk k of the other: no thread waits for columns of other slabs
        (named,), (taken,) = columns.parts, elements.parts
        crew.run(partial(_run_both, named.task(*slab), taken.task(*slab)) for slab in taken.slabs())
    else:
        crew.run(columns.tasks())
        crew.run(elements.tasks())
    states = np.zeros(len(plan.request), dtype=np.uint8)
    for part in elements.parts:
        part.mark(states)
    _settle(states, plan, np.flatnonzero(pieces[plan.targets.box] > 1), spread)
    first, second = _finished([elements, columns], started, reader)
    return (first, second), states


def _finished(reads: Sequence[_PlanRead], started: float, reader: ReaderContext) -> tuple[BoxReport, ...]:
    """Return the reports, and count."""
    reports: list[BoxReport] = []
    total = ReaderStats()
    for read in reads:
        report, stats = read.finish()
        reports.append(report)
        total += stats
    # once per call, by the calling thread: the crew never waits for this lock
    reader.counters.add(total + ReaderStats(read_s=time.perf_counter() - started))
    return tuple(reports)


def _run_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _settle(states: npt.NDArray[np.uint8], plan: BoxPlan, cut: IntArray, spread: Spread) -> None:
    """Correct `TWICE` in the marks of rows, after checking rows in which a column may appear twice.

    These are rows with columns that are not rising, if a decoder saw them in pieces or met a column twice.

    Args:
        states: uint8[B], from the decoder; changed.
        plan: of the elements.
        cut: int64[n], targets of rows in several pieces.
        spread: their columns.
    """
    runs, targets = plan.request.runs, plan.targets
    assert runs is not None
    cut = cut[targets.dst_start[cut] != runs.places[targets.box[cut]]]
    at = targets.dst_start[cut]
    falls = spread.columns[at] <= spread.columns[at - 1]  # from one piece to the next, which no decoder sees
    states[targets.box[cut[falls]]] |= TWICE
    for row in np.flatnonzero(states & TWICE).tolist():
        begin, length = int(runs.places[row]), int(runs.lengths[row])
        columns = spread.columns[begin : begin + length]
        if len(np.unique(columns)) == length:
            states[row] &= ~TWICE & 0xFF


class _PlanRead:
    """One plan being read into one output.

    Its chunks are divided by stored dtype, and into those for our decoders and those that only zarr-python decodes.
    Padded boxes are plans of their own, each read into the region that its box is made from.
    """

    def __init__(self, plan: BoxPlan, out: NDArray, reader: ReaderContext, spread: Spread | None = None) -> None:
        self._plan, self._out, self._reader = plan, out, reader
        # Each chunk is in one task, which alone writes its key. All are read after the crew is done.
        self._failed: dict[int, ChunkFailure] = {}
        self._unfilled = _prefill(plan, out)
        metas, chunks = plan.request.arrays, plan.chunks
        exotic = np.array([meta.codec.kind == "zarr" for meta in metas], dtype=np.bool_)[chunks.array]
        slow = exotic & (chunks.offset >= 0)
        fast = ~slow & (chunks.offset >= MISSING)
        dtypes = [meta.dtype for meta in metas]
        self.parts: list[PlanPart] = []
        more: dict[str, Any] = {"failed": self._failed, "spread": spread}
        for is_slow, wanted in ((False, fast), (True, slow)):
            for dtype in sorted(set(dtypes), key=str) if wanted.any() else ():
                mine = np.array([each == dtype for each in dtypes], dtype=np.bool_)[chunks.array]
                chosen = np.flatnonzero(wanted & mine)
                if len(chosen):
                    self.parts.append(PlanPart(plan, chosen, out, reader, is_slow=is_slow, **more))
        self._padded: list[tuple[PaddedBox, NDArray, _PlanRead]] = []
        for padded in plan.padded:
            region = np.empty(padded.plan.request.out_shape, dtype=out.dtype)
            self._padded.append((padded, region, _PlanRead(padded.plan, region, reader)))

    @property
    def is_one_part(self) -> bool:
        """Whether one decoder takes all chunks together."""
        return len(self.parts) == 1 and len(self.parts[0].chosen) == len(self._plan.chunks)

    def tasks(self) -> Iterator[Callable[[], None]]:
        """Yield tasks in the order in which they should start."""
        for part in self.parts:
            for slab in part.slabs():
                yield part.task(*slab)
        for _, _, read in self._padded:
            yield from read.tasks()

    def finish(self) -> tuple[BoxReport, ReaderStats]:
        """Assemble padded boxes; return the report and the counts."""
        plan = self._plan
        missing = plan.chunks.offset == MISSING
        stats = ReaderStats(fill_chunks=int(missing.sum()), targets=len(plan.targets.box))
        absent = np.zeros(len(missing), dtype=np.bool_)
        for part in self.parts:
            stats += part.stats
            absent[part.chosen[part.absent]] = True
        self._failed |= changed_chunks(plan, self._reader.facts.array_check)
        errors = box_errors(plan, self._failed)
        for error in self._unfilled:
            errors.setdefault(error.box, error)
        boxes = unwritten(plan, absent)
        for padded, region, read in self._padded:
            report, counts = read.finish()
            stats += replace(counts, boxes=0, failed_boxes=0, out_bytes=0)  # the box is counted here
            for flags, its in zip(boxes, (report.missing_boxes, report.fill_boxes, report.lost_boxes), strict=True):
                flags[padded.box] = its[0]
            self._out[padded.box] = region[0][np.ix_(*padded.picks)]
            for error in report.errors:
                errors[padded.box] = replace(error, box=padded.box)
        valid = np.ones(len(plan.request), dtype=np.bool_)
        valid[list(errors)] = False
        report = BoxReport(
            valid=valid,
            errors=tuple(error for _, error in sorted(errors.items())),
            fill_chunks=stats.fill_chunks,
            fast_chunks=stats.fast_chunks,
            slow_chunks=stats.slow_chunks,
            cached_chunks=stats.cached_chunks,
            missing_boxes=boxes[0],
            fill_boxes=boxes[1] & valid,
            lost_boxes=boxes[2],
        )
        counts = ReaderStats(boxes=len(valid), failed_boxes=len(errors), out_bytes=self._out.nbytes)
        return report, stats + counts


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
