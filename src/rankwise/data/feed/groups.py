"""Groups: steps that are read together, so that a chunk which many of them need is decoded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from rankwise.data.contract import Plan, ReadReport, Share, Source, Step
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.errors import RankwiseError

Shares: TypeAlias = tuple[Step, tuple[Share, ...]]

# waits for a buffer and returns it; None when the leases are closed and reading ends
Acquire: TypeAlias = Callable[[], HostBuffer | None]

_HINTED_STEPS = 2


def read_alone(source: Source, steps: Iterable[Shares]) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
    """Yield steps, each share with a plan of its own; the next two steps are planned and hinted before one is yielded.

    The first step is an exception: the consumer waits for it, so it is read before the second step is planned.
    """
    ahead: deque[tuple[Step, tuple[Reading, ...]]] = deque()
    for number, (step, shares) in enumerate(steps):
        ahead.append((step, tuple(_Planned(source, share) for share in shares)))
        if number == 0 or len(ahead) > _HINTED_STEPS:
            yield ahead.popleft()
    yield from ahead


def read_together(
    source: Source,
    steps: Iterable[Shares],
    num_steps: int,
    stage: Acquire,
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
    waiting: Iterator[tuple[Step, tuple[Reading, ...]]] = iter(())
    for number, group in enumerate(_groups(steps, num_steps)):
        planned = _Group(source, group, stage, limit_bytes).steps(copied=2 * len(group) <= num_steps)
        yield from waiting
        waiting = planned
        if number == 0:
            yield next(waiting)
    yield from waiting


def _groups(steps: Iterable[Shares], num_steps: int) -> Iterator[list[Shares]]:
    group: list[Shares] = []
    last, length, window = -1, 1, 0
    for item in steps:
        start = item[0].start
        begins = start <= last or last < 0  # a pass
        if begins:
            length = max(1, item[0].count) * num_steps
        if group and (begins or start // length != window):
            yield group
            group = []
        last, window = start, start // length
        group.append(item)
    if group:
        yield group


class _Planned:
    """A share with its plan, made and hinted on creation. If planning fails, reading raises the error.

    Attributes:
        plan: the plan; None if planning has failed.
    """

    def __init__(self, source: Source, share: Share) -> None:
        self.source, self.share = source, share
        try:
            self.plan: Plan | None = source.plan(share)
            source.hint(self.plan)
        except Exception:  # noqa: BLE001  (it fails again)
            self.plan = None

    def read(self, acquire: Acquire) -> tuple[ReadReport, HostBuffer] | None:
        """Read it into a buffer of its own; return the report and the memory, or None when reading ends."""
        lent = acquire()
        if lent is None:
            return None
        try:
            return self.source.read(self.source.plan(self.share) if self.plan is None else self.plan, lent), lent
        except BaseException:
            lent.give_back()
            raise


class _Group(_Planned):
    """Steps that are planned as one share when this is made, and read as one when the first of their shares is read.

    Attributes:
        stage: waits for its memory.
        limit_bytes: most bytes of a share of a step; None = any.
        came: what was read; None before that, and if its samples cannot be read as one. Then there is no plan either,
            and each share is read by itself, so that the steps before the one that fails are read.
        counted: whether a share that was read has the chunk counts.
    """

    def __init__(self, source: Source, steps: Sequence[Shares], stage: Acquire, limit_bytes: int | None) -> None:
        self._steps, self.stage, self.limit_bytes = steps, stage, limit_bytes
        self.came: tuple[ReadReport, HostBuffer] | None = None
        self.counted = False
        parts = [share for _, shares in steps for share in shares]
        # one share of all samples, in order; it names the first step: all steps have its epoch and seed
        weights = [share.weights for share in parts if share.weights is not None]
        whole = replace(
            parts[0],
            micro=0,
            num_micro=1,
            positions=np.concatenate([share.positions for share in parts]),
            ids=np.concatenate([share.ids for share in parts]),
            weights=np.concatenate(weights) if len(weights) == len(parts) else None,
        )
        super().__init__(source, whole)

    def steps(self, *, copied: bool) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        """Yield the steps; `copied`: all their shares are copied out, not only those of the last one."""
        first = 0
        try:
            for number, (step, shares) in enumerate(self._steps, start=1):
                copied = copied or 1 < number == len(self._steps)
                readings = []
                for share in shares:
                    readings.append(_Part(group=self, share=share, first=first, copied=copied))
                    first += len(share.ids)
                yield step, tuple(readings)
        finally:
            if self.came is not None:
                self.came[1].give_back()
                self.came = None


@dataclass(slots=True, kw_only=True)
class _Part:
    """A share of a group: its samples are adjacent in the group's buffer, from `first` on."""

    group: _Group
    share: Share
    first: int
    copied: bool

    def read(self, acquire: Acquire) -> tuple[ReadReport, HostBuffer] | None:
        """Return its part of what the group has read, see `_Planned.read`; `acquire` gives the memory of a copy."""
        group, share = self.group, self.share
        if group.came is None and group.plan is not None:
            try:
                group.came = group.read(group.stage)
            except RankwiseError:
                group.plan = None
        if group.plan is None:
            return _Planned(group.source, share).read(acquire)
        if group.came is None:
            return None
        report, stage = group.came
        last = self.first + len(share.ids)
        valid, errors = report.valid[self.first : last], report.errors
        if errors:
            failed = set(share.ids[~valid].tolist())
            errors = tuple(error for error in errors if error.sample in failed)
        if group.counted:
            report = ReadReport(valid=valid, errors=errors)
        else:  # the first share that is read gets the chunk counts
            group.counted, report = True, replace(report, valid=valid, errors=errors)
        part = stage.part(self.first, last, limit_bytes=group.limit_bytes)
        if not self.copied:
            return report, part
        try:
            lent = acquire()
            if lent is not None:
                part.copy_to(lent, group.source.fields, len(share.ids))
        finally:
            part.give_back()
        return None if lent is None else (report, lent)


Reading: TypeAlias = _Planned | _Part  # one share that is about to be read
