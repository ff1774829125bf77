"""Reads the planned batches of a stream into memory and puts them on the device."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray, sample_keys
from rankwise.data.crops.budget import Budget
from rankwise.data.crops.config import Config
from rankwise.data.crops.devices import DevicePlace
from rankwise.data.crops.exceptions import BudgetExceeded, DamacyError, DecodeError, OutOfMemory
from rankwise.data.crops.fields import sample_bytes
from rankwise.data.crops.plan import CropPlan, CropReport
from rankwise.data.crops.sample import Sample
from rankwise.data.crops.stats import Meters
from rankwise.data.crops.stream.resolver import Openings
from rankwise.data.crops.stream.schedule import Failure, Numbered, Planner, Work
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.lease import Leases
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.place import Placed, Placer
from rankwise.data.feed.prefetch import ReadAhead
from rankwise.data.feed.transform import SampleTransform
from rankwise.data.store.reader import BoxReader

_LOG = logging.getLogger("rankwise.crops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A batch that was read.

    Attributes:
        samples: its samples.
        numbers: int64[B], their numbers.
        key: int64[B], their keys.
        buffer: their memory on the host.
        placed: its fields on the device.
        all_fill: whether nothing in it was ever written.
    """

    samples: tuple[Sample, ...]
    numbers: IntArray
    key: IntArray
    buffer: HostBuffer
    placed: Placed
    all_fill: bool


Result: TypeAlias = Ready | Failure


class StreamReader:
    """Reads planned batches, for a `ReadAhead`.

    Attributes:
        is_awaited: whether a consumer waits; set by the object that runs this.
        openings: opens the arrays of samples.
        engine: reads their boxes; the caller closes it.
        planner: makes batches of samples and plans them.
        planned: runs it ahead.
        doing: what it waits for, for messages; empty while it waits for a plan.
        skips: counts skipped samples.
    """

    is_awaited: Callable[[], bool]

    def __init__(self, config: Config, *, place: DevicePlace, budget: Budget, placer: Placer, meters: Meters) -> None:
        self._budget = budget
        self.openings = Openings(config)
        self.engine = BoxReader(
            cache=config.cache_bytes,
            threads=config.n_io_threads,
            max_indexes=config.n_shard_index_cache,
            remote=config.remote_options,
        )
        if place.rank == 0:  # at least one file each; the arrays are not known yet
            files = budget.num_slots * config.samples_per_batch * len(config.all_fields)
            self.engine.warn_few_handles(files, local_ranks=place.local_world_size)
        planner = self.planner = Planner(config, self.openings, self.engine, meters, self._is_awaited)
        self.planned: ReadAhead[Numbered | Failure | None, Work] = ReadAhead(planner, planner.samples, depth=1)
        cap_bytes = budget.num_slots * budget.slot_limit_bytes
        self._memory = MemoryPool(
            0, pinned=placer.pinned, cap_bytes=cap_bytes, over_cap=BudgetExceeded, warns=place.rank == 0
        )
        self._leases = Leases(is_awaited=self._is_awaited, has_room=self._memory.has_room)
        self._seed, self._rank = config.seed, place.rank
        self._placer = placer
        self._meters = meters
        self._transform = None if config.transform is None else SampleTransform(config.transform)
        self._scratch = HostBuffer()
        self.skips = SkipRule(config.on_bad_sample)
        self.doing = ""
        self._full = (
            f"all {budget.num_slots} batch buffers (host_buffer_waves={config.host_buffer_waves}) and what the memory "
            "caps allow beyond them are in use: release batches, and drop the arrays, tensors and views that share "
            "their memory, clone the part you need, or raise max_host_memory_bytes (max_gpu_memory_bytes)"
        )

    def _is_awaited(self) -> bool:
        return self.is_awaited()

    def wake(self) -> None:
        """Check again whether a consumer waits."""
        self._leases.wake()
        self.planner.wake()

    def close(self) -> None:
        """Stop all waits for samples, arrays and memory."""
        self.planned.close(waits=False)
        self._leases.close()

    def read(self, steps: Iterable[Work], is_asked: Callable[[], bool]) -> Generator[Result, None, None]:
        """Yield the result for each step; end early if it is closed while it waits for memory."""
        del is_asked  # what is pushed is read
        for step in steps:
            results = self._results(step)
            if results is None:
                return
            while results:
                yield results.pop(0)  # no local name: no reference here may keep the memory

    def _results(self, work: Work) -> list[Result] | None:
        try:
            read = self._read(work)
        except MemoryError as error:
            read = [Failure(OutOfMemory(f"no memory is left for a batch: {error}"), len(work.items))]
        except BaseException as error:  # noqa: BLE001  (raised where the consumer meets it)
            read = [Failure(error, len(work.items))]
        self.doing = ""
        if read is None:
            return None
        results = [*work.failures, *read]
        for result in results:
            if isinstance(result, Failure):
                _forget_locals(result.error)
        return results

    def _read(self, work: Work) -> list[Result] | None:
        if work.plan is None:
            return self._judged(work.failed)
        buffer = self._acquire()
        if buffer is None:
            return None
        self.doing = "the next batch is being read: the storage is slow, or the batch is large"
        into = buffer if self._transform is None else self._scratch
        plan = work.plan
        out_bytes = sample_bytes(plan.specs) * plan.num_samples
        with self._meters.time("decode", input_bytes=plan.read_bytes, output_bytes=out_bytes):
            report = plan.read(into)
        decoded = report.fast_chunks + report.slow_chunks
        self._meters.add(
            chunks_planned=plan.num_chunks,
            chunks_to_load=max(0, plan.num_chunks - report.cached_chunks),
            chunks_dispatched=decoded,
            reads_issued=decoded,
            fast_chunks=report.fast_chunks,
            slow_chunks=report.slow_chunks,
            cached_chunks=report.cached_chunks,
            fill_chunks=report.fill_chunks,
            wanted_bytes=plan.wanted_bytes,
        )
        results = self._judged(report.errors)
        if not report.valid.any():
            return results
        if report.errors:
            into.keep(report.valid)
        return [*results, self._ready(work, plan, report, buffer)]

    def _judged(self, errors: Sequence[DamacyError]) -> list[Result]:
        return [Failure(self.skips.check(errors), len(errors))] if errors else []

    def _acquire(self) -> HostBuffer | None:
        """Return memory for a batch, once there is room; None when closed."""
        self.doing = self._full
        with self._meters.time("bind_wait"):
            lease = self._leases.acquire(self._budget.num_slots)
        if lease is None:
            return None
        return HostBuffer(
            self._memory,
            lease=lease,
            limit_bytes=self._budget.slot_limit_bytes,
            spares=self._budget.num_slots,
        )

    def _ready(self, work: Work, plan: CropPlan, report: CropReport, buffer: HostBuffer) -> Ready:
        kept = np.flatnonzero(report.valid).tolist()
        items = [work.items[row] for row in kept]
        numbers = np.array([item.number for item in items], dtype=np.int64)
        keys = sample_keys(self._seed, self._rank, numbers)
        for row, item in enumerate(items):  # a sample's own key replaces f(seed, rank, number)
            if item.sample is not None and item.sample.key is not None:
                keys[row] = np.uint64(item.sample.key & (2**64 - 1)).view(np.int64)
        names = tuple(plan.specs)
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
        )


def _forget_locals(error: BaseException | None) -> None:
    """Clear the variables of an error's frames: otherwise keeping the error would keep the memory of the batch."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        for other in getattr(error, "others", ()):
            _forget_locals(other)
        error = error.__cause__ or error.__context__


class SkipRule:
    """Handles the bad samples of one batch after another: all of them are skipped, or all are raised as one error.

    Only damaged content is skipped. A sample counts each time it is pushed.
    """

    def __init__(self, allowed: Literal["raise"] | int) -> None:
        self._allowed = 0 if allowed == "raise" else allowed
        self.num_skipped = 0

    def check(self, errors: Sequence[DamacyError]) -> DamacyError | None:
        """Return the error to raise for the bad samples of a batch; None if all of them are skipped."""
        serious = [error for error in errors if not isinstance(error, DecodeError)]
        if not serious and self.num_skipped + len(errors) <= self._allowed:
            self.num_skipped += len(errors)
            for error in errors:
                _LOG.warning("skipped (%d of at most %d): %s", self.num_skipped, self._allowed, error)
            return None
        first = (serious or list(errors))[0]
        first.others = tuple(error for error in errors if error is not first)
        for error in first.others:
            first.add_note(f"in the same batch: {error}")
        if self._allowed and not serious:
            first.add_note(
                f"{self.num_skipped} samples were skipped before; on_bad_sample={self._allowed} allows no more"
            )
        return first

    def log_total(self) -> None:
        """Log how many samples were skipped, if any."""
        if self.num_skipped:
            _LOG.warning("%d damaged samples were skipped in total (at most %d)", self.num_skipped, self._allowed)
