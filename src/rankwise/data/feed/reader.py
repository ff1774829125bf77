"""Reads the steps of a rank one by one: hint the step after the next, read the next, skip damaged samples."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from rankwise.data.contract import ReadReport, Share, Source, Step, whole_number
from rankwise.data.feed.batch import ReadBatch, ReadStep, step_keys
from rankwise.data.feed.groups import Reading, Shares, read_alone, read_together
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.csr import num_cols_of
from rankwise.data.feed.memory.lease import Leases
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.feed.place import Placer
from rankwise.data.feed.transform import SampleTransform
from rankwise.errors import SampleError

OnBadSample: TypeAlias = Literal["raise"] | int
_SAID = 3
_LOG = logging.getLogger("rankwise.data")


class SkipBudget:
    """Decides about samples that could not be read; counts those that are skipped.

    Only damaged content may be skipped: skipping on storage errors would lose good samples. A sample that is read again
    in the same epoch, for example after a return to the last step marked done, counts once.

    Args:
        on_bad_sample: "raise", or the largest number of samples to skip, over all epochs.

    Attributes:
        may_skip: whether any sample may be skipped.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, on_bad_sample: OnBadSample) -> None:
        mend = ': how many damaged samples may be skipped, or "raise"'
        limit = 0 if on_bad_sample == "raise" else on_bad_sample
        self._limit = whole_number("on_bad_sample", limit, least=0, mend=mend)
        self.may_skip = self._limit > 0
        self._skipped: set[tuple[int, int]] = set()
        # The thread of an abandoned pass may still be in its last read when the thread of the next pass starts. Each
        # process has its own lock: a child forked meanwhile would find the parent's held for ever.
        self._locks: dict[int, threading.Lock] = {}
        self._grant: Callable[[int], int | None] | None = None  # None: this process counts alone

    def __reduce__(self) -> tuple[type[SkipBudget], tuple[int]]:
        return SkipBudget, (self._limit,)

    def shared(self, grant: Callable[[int], int | None]) -> SkipBudget:
        """Return a budget that several processes share.

        Args:
            grant: gets the limit; returns the number of the next skipped sample over all processes, None = no more.
        """
        made = SkipBudget(self._limit)
        made._grant = grant
        return made

    @property
    def num_skipped(self) -> int:
        """Samples that were skipped so far."""
        return len(self._skipped)  # the loop asks while the reader counts: a single read needs no lock

    def skip(self, error: SampleError, share: Share) -> None:
        """Skip a sample of a share.

        Raises:
            SampleError: the sample may not be skipped: its content is not damaged, or the budget is used up.
        """
        if not error.damage or not self.may_skip:
            raise error
        # Decide and record under one lock, including the question to other workers: one sample gets the last place.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            # an error that names no sample counts by itself
            key = (share.step.epoch, error.sample if error.sample >= 0 else -1 - len(self._skipped))
            if key in self._skipped:
                return
            number = len(self._skipped) + 1 if self._grant is None else self._grant(self._limit)
            if number is None or number > self._limit:
                error.add_note(
                    f"rank {share.rank} has skipped {self._limit} damaged samples before, the maximum that "
                    f"on_bad_sample={self._limit} allows: repair the store, or allow more"
                )
                raise error
            self._skipped.add(key)
        if number <= _SAID:
            more = "; further ones are counted but not logged" if number == _SAID else ""
            _LOG.warning(
                "rank %d skips a damaged sample (%d of at most %d)%s: %s",
                share.rank, number, self._limit, more, error,
            )  # fmt: skip

    def log_total(self, rank: int) -> None:
        """Log how many samples this rank skipped, if any."""
        if self._skipped:
            _LOG.warning("rank %d skipped %d damaged samples in total", rank, len(self._skipped))


_NUM_STAGES = 2  # one in use, one being read
_LOOKED_AT = 1  # a batch that the loop has left but still names


def share_place(share: Share) -> str:
    """Return in words which share of which step this is, for notes on errors."""
    step, last = share.step, share.step.start + share.step.count - 1
    where = f"step {step.index} of epoch {step.epoch} (positions {step.start} to {last})"
    return f"{where} for rank {share.rank} of {share.world_size}"


@dataclass(kw_only=True, eq=False)
class StepReader:
    """Reads steps one after the other in the calling thread.

    Attributes:
        source: the samples.
        memory: pool for batches.
        placer: puts batches on the device.
        transform: for each sample, or None.
        depth: steps that may lie ready; one more is in use or being read.
        budget: decides about samples that cannot be read.
        together: number of steps that are read as one group.
        stages: pool for these groups.
        limit_bytes: most bytes of a batch; None = any.
    """

    source: Source
    memory: MemoryPool
    placer: Placer
    transform: SampleTransform | None
    depth: int
    budget: SkipBudget
    together: int
    stages: MemoryPool
    limit_bytes: int | None

    def __post_init__(self) -> None:
        self._names, self._num_cols = tuple(self.source.fields), num_cols_of(self.source)
        room: dict[str, Any] = {"has_room": self.memory.has_room, "no_room": self.memory.no_room}
        self._leases, self._stage_leases = Leases(**room), Leases(**room)
        self._scratch = HostBuffer()
        self._epoch, self._most_batches = -1, 1

    @property
    def is_awaited(self) -> Callable[[], bool]:
        """Whether a consumer waits for what is read; always True if the consumer reads in its own thread."""
        return self._leases.is_awaited

    @is_awaited.setter
    def is_awaited(self, value: Callable[[], bool]) -> None:
        self._leases.is_awaited = self._stage_leases.is_awaited = value

    def close(self) -> None:
        """Stop waiting for memory: reading ends."""
        # Any thread may call it while the reader waits in either of them. Both get a message, which takes no lock.
        self._leases.close()
        self._stage_leases.close()

    def wake(self) -> None:
        """Check whether a consumer waits; the consumer calls it when it begins to wait."""
        # Called with the lock of the consumer's queue held. A message needs no lock that the reader could hold, so the
        # two cannot deadlock.
        self._leases.wake()
        self._stage_leases.wake()

    def read(
        self, steps: Iterable[Shares], is_asked: Callable[[], bool] = lambda: True
    ) -> Generator[ReadStep | None, None, None]:
        """Yield every step, read and placed; end early when the leases are closed.

        Yield None at a step that was not asked for yet, if it needs the user's transform or has samples that cannot be
        read: resume when the step was asked for.

        Args:
            steps: in order.
            is_asked: whether the next step was asked for.

        Raises:
            SampleError: a sample cannot be read.
            DataError: the source cannot be read.
        """
        for step, readings in self._planned(steps):
            self._most_batches = max(self._most_batches, len(readings))
            read = [(yield from self._step(step, readings, is_asked))]
            if read[0] is None:
                return
            yield read.pop()  # no local name: it would keep the memory of the step while the next one is read

    def _step(
        self, step: Step, readings: tuple[Reading, ...], is_asked: Callable[[], bool]
    ) -> Generator[None, None, ReadStep | None]:
        started, batches = time.perf_counter(), list[ReadBatch]()
        try:
            for reading in readings:
                # samples on their way through a transform: one batch after another uses the same buffer
                found = reading.read(self._acquire if self.transform is None else lambda: self._scratch)
                if found is None:
                    return None
                if (found[0].errors or self.transform is not None) and not is_asked():
                    paused = time.perf_counter()
                    yield
                    started += time.perf_counter() - paused
                batch = self._batch(step, reading.share, *found)
                if batch is None:
                    return None
                batches.append(batch)
        except Exception as error:
            error.add_note(f"while reading {share_place(readings[0].share)}")
            raise
        return ReadStep(batches=tuple(batches), read_s=time.perf_counter() - started)

    def _planned(self, steps: Iterable[Shares]) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        if self.together > 1:
            limit_bytes = self.limit_bytes
            return read_together(self.source, steps, self.together, self._acquire_stage, limit_bytes=limit_bytes)
        return read_alone(self.source, steps)

    def _batch(self, step: Step, share: Share, report: ReadReport, lent: HostBuffer) -> ReadBatch | None:
        """Return what was read of a share without its damaged samples, transformed and placed; None when reading ends.

        Args:
            step: the step.
            share: the samples that were asked for.
            report: which of them arrived.
            lent: their memory, which goes back if this fails.
        """
        try:
            num_lost = 0
            if report.errors:
                num_lost = _num_real(share)
                for error in report.errors:
                    self.budget.skip(error, share)
                kept, weights = report.valid, share.weights
                lent.keep(kept)
                weights = None if weights is None else weights[kept]
                share = replace(share, positions=share.positions[kept], ids=share.ids[kept], weights=weights)
                num_lost -= _num_real(share)
            names, num_cols = self._names, self._num_cols
            if self.transform is not None:
                made = self._transformed(self.transform, step, share, lent)
                if made is None:
                    lent.give_back()
                    return None
                raw, lent = lent, made
                raw.give_back()
                names, num_cols = tuple(self.transform.specs or ()), self.transform.num_cols
            placed = self.placer.place(lent, names, num_cols)
        except BaseException:
            lent.give_back()
            raise
        return ReadBatch(share=share, lent=lent, placed=placed, report=report, num_lost=num_lost)

    def _acquire(self) -> HostBuffer | None:
        limit = (self.depth + 1) * self._most_batches
        lease = self._leases.acquire(limit)
        if lease is None:
            return None
        return HostBuffer(self.memory, lease=lease, limit_bytes=self.limit_bytes, spares=limit + _LOOKED_AT)

    def _acquire_stage(self) -> HostBuffer | None:
        lease = self._stage_leases.acquire(_NUM_STAGES)
        return None if lease is None else HostBuffer(self.stages, lease=lease, spares=_NUM_STAGES + _LOOKED_AT)

    def _transformed(self, transform: SampleTransform, step: Step, share: Share, raw: HostBuffer) -> HostBuffer | None:
        """Return the transformed samples; None when reading ends."""
        if step.epoch != self._epoch:
            self._epoch = step.epoch
            transform.begin()
        if transform.specs is None and len(share.ids) == 0:
            self._learn(transform, step, share)
        made = self._acquire()
        if made is None:
            return None
        try:
            transform.apply(raw, self._names, share.ids, step_keys(step, share.ids), made)
        except BaseException:
            made.give_back()
            raise
        return made

    def _learn(self, transform: SampleTransform, step: Step, share: Share) -> None:
        """If this rank's first share is empty, learn the output specs from the first good sample of the step."""
        for place, sample in enumerate(step.ids):
            probe = Share(
                step=step, micro=0, num_micro=1, rank=share.rank, world_size=share.world_size,
                positions=np.array([step.start + place]), ids=np.array([sample]), weights=None,
            )  # fmt: skip
            held = HostBuffer()
            report = self.source.read(self.source.plan(probe), held)
            if report.errors and self.budget.may_skip and report.errors[0].damage:
                continue  # the rank whose share has it counts it
            if report.errors:
                raise report.errors[0]
            transform.learn(held, self._names, int(probe.ids[0]), int(step_keys(step, probe.ids)[0]))
            return


def _num_real(share: Share) -> int:
    return len(share.ids) if share.weights is None else int(np.count_nonzero(share.weights))
