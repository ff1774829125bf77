"""Groups: steps that are read as one, so that a chunk that many of them touch is decoded once."""

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
        """Read it; return how it went and where it is, or None when there is no more memory to be had: it is over.

        Args:
            acquire: gets a buffer of its own, if it needs one; waits for it, and returns None once it is over.
        """
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
    source: Source,
    steps: Iterable[Shares],
    num_steps: int,
    stage: Callable[[], Stage | None],
    *,
    limit_bytes: int | None = None,
) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps of which so many are planned and read as one; the next ones are hinted before they are read.

    Each share lies where it was read, beside the others; the memory is filled again when nobody sees any of them.
    Those of the last step are copied out, so that the next steps but one are read while it is in use; so are those of
    few steps, at the end of an epoch, which last less long than reading what follows takes.

    But for the very first ones, which somebody waits for: what comes after them is planned when they are read.
    They end where a multiple of so many steps of the epoch ends, wherever the first begins: an order whose windows last
    so long then finds each of its windows in one of them.

    Args:
        source: samples by index.
        steps: in order, each with the shares of this rank. They are read in this order.
        num_steps: how many are read as one.
        stage: gets the memory for so many; waits for it, and returns None once it is over.
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
    """Memory for steps that are read as one: some are in use while the next ones are read."""

    def __init__(self, acquire: Callable[[], Stage | None], limit_bytes: int | None) -> None:
        self._acquire, self._limit_bytes = acquire, limit_bytes

    def read(self, source: Source, plan: Plan) -> tuple[ReadReport, SharedBuffer] | None:
        """Carry out a plan; None once it is over."""
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
    """Steps that are planned as one when this is made, and read as one when the first of their shares is."""

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
        """Return a share, the first samples of which are not its own; all of them are read at the first call."""
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
        """Return what concerns a share; chunks count with the one that is asked for first."""
        valid, errors = whole.valid[first:last], whole.errors
        if errors:
            failed = set(share.ids[~valid].tolist())
            errors = tuple(error for error in errors if error.sample in failed)
        if self._counted:
            return ReadReport(valid=valid, errors=errors)
        self._counted = True
        return replace(whole, valid=valid, errors=errors)


class _Part:
    """A share of steps that are read as one: its samples are neighbours among those of all."""

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
