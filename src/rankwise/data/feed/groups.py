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

__all__ = ["Reading", "Shares", "read_alone", "read_together"]

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
        ahead.append((step, tuple(_Alone(source, share) for share in shares)))
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
        planned = _Together(source, group, stage, limit_bytes, copied=2 * len(group) <= num_steps).steps()
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


class _Alone:
    """A share with a plan of its own, made and hinted on creation. If planning fails, reading raises the error."""

    def __init__(self, source: Source, share: Share) -> None:
        self._source, self.share = source, share
        try:
            self._plan: Plan | None = source.plan(share)
            source.hint(self._plan)
        except Exception:  # noqa: BLE001  (it fails again)
            self._plan = None

    def read(self, acquire: Acquire) -> tuple[ReadReport, HostBuffer] | None:
        """Read it; return the report and the memory, or None when reading ends."""
        return _read(self._source, self.share, self._plan, acquire)


def _read(source: Source, share: Share, plan: Plan | None, acquire: Acquire) -> tuple[ReadReport, HostBuffer] | None:
    """Read one share into a buffer of its own."""
    lent = acquire()
    if lent is None:
        return None
    try:
        return source.read(source.plan(share) if plan is None else plan, lent), lent
    except BaseException:
        lent.give_back()
        raise


class _Together:
    """A group of steps: planned as one when this is made, read as one when the first share is read."""

    def __init__(
        self,
        source: Source,
        steps: Sequence[Shares],
        stage: Acquire,
        limit_bytes: int | None,
        *,
        copied: bool,
    ) -> None:
        self.source, self._steps, self._copied = source, steps, copied
        self._stage, self.limit_bytes = stage, limit_bytes
        self._read: tuple[ReadReport, HostBuffer] | None = None
        self.counted = False
        parts = [share for _, shares in steps for share in shares]
        # one share of all samples, in order; it names the first step: all steps have its epoch and seed
        weights = [share.weights for share in parts if share.weights is not None]
        self._share = replace(
            parts[0],
            micro=0,
            num_micro=1,
            positions=np.concatenate([share.positions for share in parts]),
            ids=np.concatenate([share.ids for share in parts]),
            weights=np.concatenate(weights) if len(weights) == len(parts) else None,
        )
        try:
            self.plan: Plan | None = source.plan(self._share)
            source.hint(self.plan)
        except Exception:  # noqa: BLE001  (each share by itself: then the steps before the one that fails are read)
            self.plan = None

    def steps(self) -> Iterator[tuple[Step, tuple[Reading, ...]]]:
        first = 0
        try:
            for number, (step, shares) in enumerate(self._steps, start=1):
                copied = self._copied or 1 < number == len(self._steps)
                readings = []
                for share in shares:
                    readings.append(_Part(whole=self, share=share, first=first, copied=copied))
                    first += len(share.ids)
                yield step, tuple(readings)
        finally:
            if self._read is not None:
                self._read[1].give_back()
                self._read = None

    def read(self) -> tuple[ReadReport, HostBuffer] | None:
        """Read all samples, at the first call. None when reading ends, or if they cannot be read as one: no `plan`."""
        if self._read is None and self.plan is not None:
            try:
                self._read = _read(self.source, self._share, self.plan, self._stage)
            except RankwiseError:
                self.plan = None
        return self._read


@dataclass(slots=True, kw_only=True)
class _Part:
    """A share of a group: its samples are adjacent in the group's buffer, from `first` on."""

    whole: _Together
    share: Share
    first: int
    copied: bool

    def read(self, acquire: Acquire) -> tuple[ReadReport, HostBuffer] | None:
        """Return its part of what the group has read, see `_Alone.read`; `acquire` gives the memory of a copy."""
        whole, share = self.whole, self.share
        read = whole.read()
        if read is None:
            return None if whole.plan is not None else _read(whole.source, share, None, acquire)
        report, stage = read
        last = self.first + len(share.ids)
        valid, errors = report.valid[self.first : last], report.errors
        if errors:
            failed = set(share.ids[~valid].tolist())
            errors = tuple(error for error in errors if error.sample in failed)
        if whole.counted:
            report = ReadReport(valid=valid, errors=errors)
        else:  # the first share that is read gets the chunk counts
            whole.counted, report = True, replace(report, valid=valid, errors=errors)
        part = stage.part(self.first, last, limit_bytes=whole.limit_bytes)
        if not self.copied:
            return report, part
        try:
            lent = acquire()
            if lent is not None:
                part.copy_to(lent, whole.source.fields, len(share.ids))
        finally:
            part.give_back()
        return None if lent is None else (report, lent)


Reading: TypeAlias = _Alone | _Part  # one share that is about to be read
