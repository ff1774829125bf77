"""Groups: steps that are read together, so that a chunk which many of them need is decoded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol, TypeAlias

import numpy as np

from rankwise.data.contract import Plan, ReadReport, Share, Source, Step
from rankwise.data.feed.memory.buffer import HostBuffer, Lent, LentPart, SharedBuffer
from rankwise.data.feed.memory.lease import Lease
from rankwise.errors import RankwiseError

__all__ = ["Reading", "Shares", "read_alone", "read_together"]

Shares: TypeAlias = tuple[Step, tuple[Share, ...]]

_HINTED_STEPS = 2


Acquire: TypeAlias = Callable[[], HostBuffer | None]
Stage: TypeAlias = tuple[HostBuffer, Lease]


class Reading(Protocol):
    """One share that is about to be read."""

    @property
    def share(self) -> Share:
        """The share."""
        ...

    def read(self, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
        """Read it; return the report and the memory, or None when the leases are closed and reading ends.

        Args:
            acquire: waits for a buffer and returns it, for shares that need one of their own; None when reading ends.
        """
        ...


def read_alone(source: Source, steps: Iterable[Shares]) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps, each share with a plan of its own; the next two steps are planned and hinted before one is yielded.

    The first step is an exception: the consumer waits for it, so it is read before the second step is planned.
    """
    ahead: deque[tuple[Step, tuple[Reading, ...]]] = deque()
    for number, (step, shares) in enumerate(steps):
        ahead.append((step, tuple(_Alone(source, share) for share in shares)))
        if number == 0 or len(ahead) > _HINTED_STEPS:
            yield ahead.popleft()
    yield from ahead


def read_together(
    source: Source,
    steps: Iterable[Shares],
    num_steps: int,
    stage: Callable[[], Stage | None],
    *,
    limit_bytes: int | None = None,
) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps that are planned and read in groups; the next group is hinted before a group is read.

    The shares of a group lie side by side in one buffer, which is refilled when no view of any is left. The shares of
    the last step are copied out, so that the next group but one can be read while that step is in use. So are all
    shares of a short group at the end of an epoch, which lasts less long than reading the next group takes.

    The first group is an exception: the consumer waits for it, so it is read before the second group is planned.
    Groups end at multiples of `num_steps` within the epoch, wherever the first one begins. If a window of the order
    lasts `num_steps` steps, each window therefore lies in one group.

    Args:
        source: samples by index.
        steps: in order, each with the shares of this rank. They are read in this order.
        num_steps: how many steps form a group.
        stage: waits for the memory of a group and returns it; None when reading ends.
        limit_bytes: most bytes of a share; None = any.
    """
    stages = _Stages(stage, limit_bytes)
    waiting: Iterator[tuple[Step, tuple[Reading, ...]]] = iter(())
    for number, group in enumerate(_groups(steps, num_steps)):
        planned = _Together(source, group, stages, copied=2 * len(group) <= num_steps).steps()
        yield from waiting
        waiting = planned
        if number == 0:
            yield next(waiting)
    yield from waiting


def _groups(steps: Iterable[Shares], num_steps: int) -> Iterator[list[Shares]]:
    number, last, length = 0, -1, 1

    def group_of(item: Shares) -> tuple[int, int]:
        nonlocal number, last, length
        start = item[0].start
        if start <= last or not number:  # the next pass begins
            number, length = number + 1, max(1, item[0].count) * num_steps
        last = start
        return number, start // length

    for _, group in groupby(steps, group_of):
        yield list(group)


class _Alone:
    """A share with a plan of its own, made and hinted on creation. If planning fails, reading raises the error."""

    def __init__(self, source: Source, share: Share) -> None:
        self._source, self.share = source, share
        try:
            self._plan: Plan | None = source.plan(share)
            source.hint(self._plan)
        except Exception:  # noqa: BLE001  (it fails again)
            self._plan = None

    def read(self, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
        return _read(self._source, self.share, self._plan, acquire)


def _read(source: Source, share: Share, plan: Plan | None, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
    """Read one share into a buffer of its own."""
    lent = acquire()
    if lent is None:
        return None
    try:
        return source.read(source.plan(share) if plan is None else plan, lent), lent
    except BaseException:
        lent.give_back()
        raise


class _Stages:
    """Memory for groups: one group is in use while the next one is read."""

    def __init__(self, acquire: Callable[[], Stage | None], limit_bytes: int | None) -> None:
        self._acquire, self._limit_bytes = acquire, limit_bytes

    def read(self, source: Source, plan: Plan) -> tuple[ReadReport, SharedBuffer] | None:
        """Carry out a plan; None when reading ends."""
        stage = self._acquire()
        if stage is None:
            return None
        buffer, lease = stage
        try:
            report = source.read(plan, buffer)
        except BaseException:
            buffer.give_back()
            raise
        return report, SharedBuffer(buffer, lease, limit_bytes=self._limit_bytes)


class _Together:
    """A group of steps: planned as one when this is made, read as one when the first share is read."""

    def __init__(self, source: Source, steps: Sequence[Shares], stages: _Stages, *, copied: bool) -> None:
        self.source, self._copied = source, copied
        self._steps, self._stages = steps, stages
        self._read: tuple[ReadReport, SharedBuffer] | None = None
        self._counted = False
        shares = [share for _, shares in steps for share in shares]
        try:
            self._plan: Plan | None = source.plan(_joined(shares))
            source.hint(self._plan)
        except Exception:  # noqa: BLE001  (each share by itself: then the steps before the one that fails are read)
            self._plan = None

    def steps(self) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        first = 0
        try:
            for number, (step, shares) in enumerate(self._steps, start=1):
                readings = []
                for share in shares:
                    readings.append(_Part(self, share, first, copied=self._copied or 1 < number == len(self._steps)))
                    first += share.num_samples
                yield step, tuple(readings)
        finally:
            if self._read is not None:
                self._read[1].close()
                self._read = None

    def part(self, share: Share, first: int, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
        """Return a share, which begins at sample `first` of the group; the first call reads the whole group."""
        if self._read is None and self._plan is not None:
            try:
                self._read = self._stages.read(self.source, self._plan)
            except RankwiseError:
                self._plan = None
        if self._plan is None:
            return _read(self.source, share, None, acquire)
        if self._read is None:
            return None
        report, stage = self._read
        last = first + share.num_samples
        return self._report_of(report, first, last, share), stage.part(self.source.fields, first, last)

    def _report_of(self, whole: ReadReport, first: int, last: int, share: Share) -> ReadReport:
        """Return the part of the report that concerns a share; the first share that is read gets the chunk counts."""
        valid, errors = whole.valid[first:last], whole.errors
        if errors:
            failed = set(share.ids[~valid].tolist())
            errors = tuple(error for error in errors if error.sample in failed)
        if self._counted:
            return ReadReport(valid=valid, errors=errors)
        self._counted = True
        return replace(whole, valid=valid, errors=errors)


class _Part:
    """A share of a group: its samples are adjacent in the group's buffer."""

    def __init__(self, whole: _Together, share: Share, first: int, *, copied: bool) -> None:
        self._whole, self._first, self._copied = whole, first, copied
        self.share = share

    def read(self, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
        found = self._whole.part(self.share, self._first, acquire)
        if found is None or not self._copied:
            return found
        report, lent = found
        return self._copy(report, lent, acquire) if isinstance(lent, LentPart) else found

    def _copy(self, report: ReadReport, part: LentPart, acquire: Acquire) -> tuple[ReadReport, Lent] | None:
        try:
            lent = acquire()
            if lent is not None:
                part.copy_to(lent, self._whole.source.fields, self.share.num_samples)
        finally:
            part.give_back()
        return None if lent is None else (report, lent)


def _joined(shares: Sequence[Share]) -> Share:
    """One share of all samples, in order. It names the first step; all steps of a group have its epoch and seed."""
    weights = None if any(share.weights is None for share in shares) else np.concatenate([s.weights for s in shares])
    return replace(
        shares[0],
        micro=0,
        num_micro=1,
        positions=np.concatenate([share.positions for share in shares]),
        ids=np.concatenate([share.ids for share in shares]),
        weights=weights,
    )
