"""The third thread of a stream: reads planned batches into memory and puts them on the device."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.budget import Budget, too_large
from rankwise.data.crops.config import Config
from rankwise.data.crops.exceptions import OutOfMemory
from rankwise.data.crops.reading import CropPlan, CropReader, CropReport
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.flow import Flow
from rankwise.data.crops.stream.planner import Failure, Ready, SkipBudget, Work
from rankwise.data.crops.tuning import pin_thread
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.lease import Leases
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.place import Placer
from rankwise.data.feed.transform import SampleTransform

__all__ = ["StreamReader"]


class StreamReader:
    """Reads until the flow is closed.

    Args:
        flow: where plans come from and batches go.
        config: the configuration.
        leases: bounds how far it reads ahead.
        memory: where batches lie.
        budget: how many of them, and how large.
        placer: the device.
        keys: makes the keys of samples.
        meters: times and counts.
        cores: cores to stay on; None = any.
    """

    def __init__(
        self,
        flow: Flow[Any, Work, Ready | Failure],
        config: Config,
        *,
        leases: Leases,
        memory: MemoryPool,
        budget: Budget,
        placer: Placer,
        keys: Callable[[Work], IntArray],
        meters: Meters,
        cores: frozenset[int] | None,
    ) -> None:
        self._flow = flow
        self._leases, self._memory, self._budget = leases, memory, budget
        self._placer = placer
        self._keys = keys
        self._meters = meters
        self._cores = cores
        self._transform = None if config.transform is None else SampleTransform(config.transform)
        self._scratch = HostBuffer()
        self.skips = SkipBudget(config.on_bad_sample)
        self._full = (
            f"all {budget.num_slots} batch buffers (host_buffer_waves={config.host_buffer_waves}) and what the memory "
            "caps allow beside them are in use: release batches, and drop the arrays, tensors and views that share "
            "their memory, clone the part that is to stay, or raise max_host_memory_bytes (max_gpu_memory_bytes)"
        )

    def run(self) -> None:
        """Body of the thread."""
        pin_thread(self._cores)
        while (work := self._flow.take_plan()) is not None:
            self._flow.doing(self._full)
            with self._meters.time("bind_wait"):
                lease = self._leases.acquire(self._budget.num_slots)
            if lease is None:
                return
            buffer = HostBuffer(
                self._memory,
                lease=lease,
                limit_bytes=self._budget.slot_limit_bytes,
                spares=self._budget.num_slots,
                too_large=too_large,
            )
            self._flow.doing("the next batch is being read: the storage is slow, or the batch is large")
            self._flow.put_ready(*_clean(self._results(work, buffer)))
            del buffer, lease, work  # nothing here may keep the memory from coming back

    def _results(self, work: Work, buffer: HostBuffer) -> list[Ready | Failure]:
        results: list[Ready | Failure] = [Failure(error, 0) for error in work.errors]
        broken = not work.items or (work.plan is None and not work.failed)
        try:
            if not broken:
                results += self._read(work, buffer)
        except MemoryError as error:
            results.append(Failure(OutOfMemory(f"no memory is left for a batch: {error}"), len(work.items)))
        except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
            results.append(Failure(error, len(work.items)))
        return results

    def _read(self, work: Work, buffer: HostBuffer) -> list[Ready | Failure]:
        if work.plan is None or work.reader is None:
            failure = self.skips.judge(work.failed)
            return [] if failure is None else [Failure(failure, len(work.items))]
        into = buffer if self._transform is None else self._scratch
        report = self._filled(work.plan, work.reader, into)
        failure = self.skips.judge(report.errors)
        num_bad = len(report.errors)
        results: list[Ready | Failure] = [] if failure is None else [Failure(failure, num_bad)]
        if not report.valid.any():
            return results
        if num_bad:
            into.keep(report.valid)
        ready = self._ready(work, work.reader, report, buffer, left_out=num_bad if failure is None else 0)
        return [*results, ready]

    def _filled(self, plan: CropPlan, reader: CropReader, into: HostBuffer) -> CropReport:
        out_bytes = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in reader.specs.values())
        with self._meters.time("decode", input_bytes=plan.read_bytes, output_bytes=out_bytes * plan.num_samples):
            report = reader.read(plan, into)
        self._count(plan, report)
        return report

    def _ready(self, work: Work, reader: CropReader, report: CropReport, buffer: HostBuffer, *, left_out: int) -> Ready:
        kept = np.flatnonzero(report.valid).tolist()
        items = [work.items[row] for row in kept]
        numbers = np.array([item.number for item in items], dtype=np.int64)
        keys = self._keys(work)[kept]
        names = tuple(reader.specs)
        if self._transform is not None:
            with self._meters.time("assemble"):
                self._transform.apply(self._scratch, names, numbers, keys, buffer)
            names = tuple(self._transform.specs or ())
        with self._meters.time("input_transfer"):
            placed = self._placer.place(buffer, names)
        return Ready(
            samples=tuple(item.sample for item in items if item.sample is not None),
            numbers=numbers,
            key=keys,
            buffer=buffer,
            placed=placed,
            all_fill=report.all_fill,
            num_left_out=left_out,
        )

    def _count(self, plan: CropPlan, report: CropReport) -> None:
        decoded = report.fast_chunks + report.slow_chunks
        wanted = 0
        for job in plan.jobs:
            request = job.boxes.request
            sizes = np.array([array.dtype.itemsize for array in request.arrays], dtype=np.int64)
            wanted += int(sizes[request.which].sum()) * math.prod(request.shape)
        self._meters.add(
            chunks_planned=plan.num_chunks,
            chunks_to_load=max(0, plan.num_chunks - report.cached_chunks),
            chunks_dispatched=decoded,
            reads_issued=decoded,
            fast_chunks=report.fast_chunks,
            slow_chunks=report.slow_chunks,
            cached_chunks=report.cached_chunks,
            fill_chunks=report.fill_chunks,
            wanted_bytes=wanted,
        )


def _clean(results: list[Ready | Failure]) -> list[Ready | Failure]:
    for result in results:
        if isinstance(result, Failure):
            _forget_locals(result.error)
    return results


def _forget_locals(error: BaseException | None) -> None:
    """Who keeps an error keeps its frames, and with their variables the memory of the batch: let the variables go."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        for other in getattr(error, "others", ()):
            _forget_locals(other)
        error = error.__cause__ or error.__context__
