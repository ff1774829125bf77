"""Reads the steps of a rank ahead of their use: plan and hint the step after the next, read the next, hand over."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, ReadReport, Share, Source, Step, sample_keys
from rankwise.data.feed.buffer import BufferPool, HostBuffer
from rankwise.data.feed.conveyor import Conveyor
from rankwise.data.feed.csr_rows import num_cols_of
from rankwise.data.feed.place import Placed, Placer
from rankwise.data.feed.skipping import SkipBudget
from rankwise.data.feed.together import Reading, Shares, read_alone, read_together
from rankwise.data.feed.transform import SampleTransform

__all__ = ["ReadAhead", "ReadBatch", "ReadStep", "StepReader"]

_JOIN_S = 30.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """One micro-batch that was read.

    Attributes:
        share: the samples that arrived.
        buffer: where they are.
        placed: their fields.
        report: how it went.
        num_lost: real samples that were left out.
    """

    share: Share
    buffer: HostBuffer
    placed: Placed
    report: ReadReport
    num_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStep:
    """The micro-batches of one step, and how long reading them took."""

    batches: tuple[ReadBatch, ...]
    read_s: float


class StepReader:
    """Reads steps one after the other in the calling thread.

    Args:
        source: where samples come from.
        names: fields to take.
        pool: where buffers come from.
        placer: where batches go.
        transform: per sample, or None.
        depth: steps that may lie ready; the pool hands out one more.
        budget: decides about samples that cannot be read.
        together: steps that are read as one.
        stages: where the memory for these comes from.
    """

    def __init__(
        self,
        source: Source,
        *,
        names: tuple[str, ...],
        pool: BufferPool,
        placer: Placer,
        transform: SampleTransform | None,
        depth: int,
        budget: SkipBudget,
        together: int,
        stages: BufferPool,
    ) -> None:
        self._source = source
        self._names = names
        self.pool = pool
        self._placer = placer
        self._transform = transform
        self._depth = depth
        self._budget = budget
        self._together = together
        self._stages = stages
        self._scratch = HostBuffer()
        self._num_cols = num_cols_of(source)

    def read(self, steps: Iterable[Shares]) -> Iterator[ReadStep]:
        """Yield every step, read and placed; ends early when the pool is closed.

        Raises:
            SampleError: a sample cannot be read.
            DataError: the source cannot be read.
        """
        for step, readings in self._planned(steps):
            started = time.perf_counter()
            batches: list[ReadBatch] = []
            try:
                for reading in readings:
                    batch = self._batch(step, reading, limit=(self._depth + 1) * len(readings))
                    if batch is None:
                        return
                    batches.append(batch)
            except Exception as error:
                share = readings[0].share
                error.add_note(
                    f"while reading step {step.index} of epoch {step.epoch} (positions {step.start} to "
                    f"{step.start + step.count - 1}) for rank {share.rank} of {share.world_size}"
                )
                raise
            yield ReadStep(batches=tuple(batches), read_s=time.perf_counter() - started)

    def _planned(self, steps: Iterable[Shares]) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        if self._together > 1:
            return read_together(self._source, steps, self._together, self._stages)
        return read_alone(self._source, steps)

    def _batch(self, step: Step, reading: Reading, *, limit: int) -> ReadBatch | None:
        buffer = self.pool.acquire(limit)
        if buffer is None:
            return None
        try:
            names, num_cols = self._names, self._num_cols
            if self._transform is None:
                share, report = self._read(reading, buffer)
            else:
                share, report = self._read(reading, self._scratch)
                self._transformed(self._transform, step, share, buffer)
                names, num_cols = tuple(self._transform.specs or ()), self._transform.num_cols
            placed = self._placer.place(buffer, names, num_cols)
        except BaseException:
            self.pool.give_back(buffer)
            raise
        num_lost = _num_real(reading.share) - _num_real(share)
        return ReadBatch(share=share, buffer=buffer, placed=placed, report=report, num_lost=num_lost)

    def _read(self, reading: Reading, into: HostBuffer) -> tuple[Share, ReadReport]:
        """Read a share; what the budget lets pass is left out of the buffer and of the share."""
        report = reading.read(into)
        kept = self._budget.kept(report, reading.share)
        if kept is None:
            return reading.share, report
        into.keep(kept)
        return _kept_share(reading.share, kept), report

    def _transformed(self, transform: SampleTransform, step: Step, share: Share, into: HostBuffer) -> None:
        if transform.specs is None and share.num_samples == 0:
            self._learn(transform, step, share)
        transform.apply(self._scratch, self._names, share.ids, _keys(step, share.ids), into)

    def _learn(self, transform: SampleTransform, step: Step, share: Share) -> None:
        """A rank whose first share is empty looks at the step's first good sample to know what samples come out as."""
        for place in range(len(step.ids)):
            probe = Share(
                step=step, micro=0, num_micro=1, rank=share.rank, world_size=share.world_size,
                positions=np.array([step.start + place]), ids=step.ids[place : place + 1], weights=None,
            )  # fmt: skip
            held = HostBuffer()
            report = self._source.read(self._source.plan(probe), held)
            if report.errors and self._budget.may_skip and report.errors[0].damage:
                continue  # whoever has it in his share counts it
            if report.errors:
                raise report.errors[0]
            transform.learn(held, self._names, int(probe.ids[0]), int(_keys(step, probe.ids)[0]))
            return


def _keys(step: Step, ids: IntArray) -> IntArray:
    return sample_keys(step.resume.seed, step.epoch, ids)


def _num_real(share: Share) -> int:
    return share.num_samples if share.weights is None else int(np.count_nonzero(share.weights))


def _kept_share(share: Share, kept: BoolArray) -> Share:
    weights = None if share.weights is None else share.weights[kept]
    return replace(share, positions=share.positions[kept], ids=share.ids[kept], weights=weights)


class ReadAhead:
    """A `StepReader` in a background thread, with at most `depth` steps ready.

    The thread ends when the steps end, when reading fails (the error reaches the consumer after the steps before it)
    and when `close` is called; at the exit of the interpreter all that still run are closed.
    """

    def __init__(
        self,
        reader: StepReader,
        steps: Iterable[Shares],
        *,
        depth: int,
        on_thread: Callable[[], None] | None = None,
    ) -> None:
        self._pool = reader.pool
        self._conveyor: Conveyor[ReadStep] = Conveyor(depth)
        self._thread = threading.Thread(
            target=_run, args=(reader, steps, self._conveyor, on_thread), name="rankwise-reader", daemon=True
        )
        _close_at_exit(self)
        self._thread.start()

    def __iter__(self) -> Iterator[ReadStep]:
        while (step := self._conveyor.take()) is not None:
            yield step

    def close(self) -> None:
        """Stop the thread and wait for it; it ends after the sample or chunk that it is reading."""
        self._pool.close()
        for step in self._conveyor.close():
            for batch in step.batches:
                self._pool.give_back(batch.buffer)
        # a garbage collection may close a reader from within its own thread, which then cannot wait for itself
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                _LOG.warning("a reader is still inside one read %.0f s after it was closed: it is left behind", _JOIN_S)


def _run(
    reader: StepReader,
    steps: Iterable[Shares],
    conveyor: Conveyor[ReadStep],
    on_thread: Callable[[], None] | None,
) -> None:
    """The thread; it must not know the `ReadAhead`, whose end is what stops it."""
    try:
        if on_thread is not None:
            on_thread()
        for step in reader.read(steps):
            if not conveyor.put(step):
                return
    except BaseException as error:  # noqa: BLE001  (raised again in the consumer)
        conveyor.end(error)
    else:
        conveyor.end()


_LIVE: weakref.WeakSet[ReadAhead] = weakref.WeakSet()


def _close_at_exit(reader: ReadAhead) -> None:
    if not _LIVE:
        # registered as late as possible: exit handlers run in reverse order, so what the reader uses is still there
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _LIVE.add(reader)


def _close_all() -> None:
    for reader in list(_LIVE):
        reader.close()
