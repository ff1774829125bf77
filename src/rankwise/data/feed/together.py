"""Steps that are read as one: a chunk that many of them touch is decoded once, straight into rows in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeAlias

import numpy as np

from rankwise.data.contract import Plan, ReadReport, Share, Source, Step
from rankwise.data.feed.buffer import BufferPool, HostBuffer
from rankwise.errors import RankwiseError

__all__ = ["Reading", "Shares", "read_alone", "read_together"]

Shares: TypeAlias = tuple[Step, tuple[Share, ...]]

_HINTED_STEPS = 2


class Reading(Protocol):
    """One share that is about to be read."""

    @property
    def share(self) -> Share:
        """The share."""
        ...

    def read(self, into: HostBuffer) -> ReadReport:
        """Read it into a buffer, which is reserved."""
        ...


def read_alone(source: Source, steps: Iterable[Shares]) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps whose shares are planned each by itself; the following steps are hinted before one is yielded.

    But for the very first one, which somebody waits for: nothing is between its plan and its reading.
    """
    ahead: deque[tuple[Step, tuple[Reading, ...]]] = deque()
    for number, (step, shares) in enumerate(steps):
        ahead.append((step, tuple(_Alone(source, share) for share in shares)))
        if number == 0 or len(ahead) > _HINTED_STEPS:
            yield ahead.popleft()
    yield from ahead


def read_together(
    source: Source, steps: Iterable[Shares], num_steps: int, stages: BufferPool
) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps of which so many are planned and read as one; the next ones are hinted before they are read.

    But for the very first ones, which somebody waits for: what comes after them is planned when they are read.
    They end where a multiple of so many steps of the epoch ends, wherever the first begins: an order whose windows last
    so long then finds each of its windows in one of them.

    Args:
        source: samples by index.
        steps: in order, each with the shares of this rank. They are read in this order.
        num_steps: how many are read as one.
        stages: where the memory for them comes from, and goes at the end.
    """
    stage = stages.acquire(1)
    if stage is None:
        return
    waiting: Iterator[tuple[Step, tuple[Reading, ...]]] = iter(())
    try:
        for number, group in enumerate(_groups(steps, num_steps)):
            planned = _Together(source, group, stage).steps()
            yield from waiting
            waiting = planned
            if number == 0:
                yield next(waiting)
        yield from waiting
    finally:
        stages.give_back(stage)


def _groups(steps: Iterable[Shares], num_steps: int) -> Iterator[list[Shares]]:
    number, last, length = 0, -1, 1

    def group_of(item: Shares) -> tuple[int, int]:
        nonlocal number, last, length
        start = item[0].start
        if start <= last or not number:  # another pass
            number, length = number + 1, max(1, item[0].count) * num_steps
        last = start
        return number, start // length

    for _, group in groupby(steps, group_of):
        yield list(group)


class _Alone:
    """A share with a plan of its own, made and hinted with this; what cannot be planned fails when it is read."""

    def __init__(self, source: Source, share: Share) -> None:
        self._source, self.share = source, share
        try:
            self._plan: Plan | None = source.plan(share)
            source.hint(self._plan)
        except Exception:  # noqa: BLE001  (it fails again)
            self._plan = None

    def read(self, into: HostBuffer) -> ReadReport:
        plan = self._source.plan(self.share) if self._plan is None else self._plan
        return self._source.read(plan, into)


class _Together:
    """Steps that are planned as one when this is made, and read as one when the first of their shares is."""

    def __init__(self, source: Source, steps: Sequence[Shares], stage: HostBuffer) -> None:
        self.source, self.stage = source, stage
        self._steps = steps
        self._report: ReadReport | None = None
        self._counted = False
        shares = [share for _, shares in steps for share in shares]
        try:
            self._plan: Plan | None = source.plan(_joined(shares))
            source.hint(self._plan)
        except Exception:  # noqa: BLE001  (each share by itself: then the steps before the one that fails are read)
            self._plan = None

    def steps(self) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        first = 0
        for step, shares in self._steps:
            readings = []
            for share in shares:
                readings.append(_Part(self, share, first))
                first += share.num_samples
            yield step, tuple(readings)

    def read(self) -> ReadReport | None:
        """Read all of them, at the first call; None = they have to be read each by itself."""
        if self._report is None and self._plan is not None:
            try:
                self._report = self.source.read(self._plan, self.stage)
            except RankwiseError:
                self._plan = None
        return self._report

    def report_of(self, whole: ReadReport, first: int, last: int, share: Share) -> ReadReport:
        """Return what concerns a share; chunks count with the one that is asked for first."""
        valid = whole.valid[first:last]
        failed = set(share.ids[~valid].tolist())
        errors = tuple(error for error in whole.errors if error.sample in failed)
        counts, self._counted = (ReadReport(valid=valid) if self._counted else whole), True
        return replace(counts, valid=valid, errors=errors)


class _Part:
    """A share of steps that are read as one: its samples are neighbours among those of all."""

    def __init__(self, whole: _Together, share: Share, first: int) -> None:
        self._whole, self._first = whole, first
        self.share = share

    def read(self, into: HostBuffer) -> ReadReport:
        report = self._whole.read()
        if report is None:
            return self._whole.source.read(self._whole.source.plan(self.share), into)
        last = self._first + self.share.num_samples
        _copy_samples(self._whole.source, self._whole.stage, self._first, last, into)
        return self._whole.report_of(report, self._first, last, self.share)


def _joined(shares: Sequence[Share]) -> Share:
    """One share of all samples, in order; of the first step, as they have an epoch and a seed in common."""
    weights = None if any(share.weights is None for share in shares) else np.concatenate([s.weights for s in shares])
    return replace(
        shares[0],
        micro=0,
        num_micro=1,
        positions=np.concatenate([share.positions for share in shares]),
        ids=np.concatenate([share.ids for share in shares]),
        weights=weights,
    )


def _copy_samples(source: Source, stage: HostBuffer, first: int, last: int, into: HostBuffer) -> None:
    specs = source.fields
    spans = {name: stage.arrays(name)[2][[first, last]].tolist() for name, spec in specs.items() if spec.ragged}
    into.reserve(specs, last - first, {name: stop - start for name, (start, stop) in spans.items()})
    for name, spec in specs.items():
        taken, given = stage.arrays(name), into.arrays(name)
        if not spec.ragged:
            np.copyto(given[0], taken[0][first:last])
            continue
        start, stop = spans[name]
        np.copyto(given[0], taken[0][start:stop])
        np.copyto(given[1], taken[1][start:stop])
        np.subtract(taken[2][first : last + 1], taken[2][first], out=given[2])
