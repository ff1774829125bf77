"""When a launch hangs, and which rank holds the others up: from heartbeats, progress and stacks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rankwise import vitals
from rankwise.launch.culprit import find_culprit
from rankwise.launch.standstill import describe_places, is_frozen, is_stopped, rank_states, read_stacks
from rankwise.launch.verdict import Failure
from rankwise.vitals import Vital
from rankwise.vitals.stacks import place, tidy, waits

__all__ = ["DEFAULT_STALL_S", "DEFAULT_TIMEOUT_S", "HangWatch", "StallWatch", "blame"]

DEFAULT_STALL_S = 180.0  # from the first beat or collective on
DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; what gloo waits for a peer by default


class HangWatch:
    """Decides whether the ranks of one attempt still move.

    Args:
        folder: their vitals.
        timeout_s: as `Job.hang_timeout_s`.
    """

    def __init__(self, folder: Path, timeout_s: float | None) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self.reset()

    def reset(self) -> None:
        """Count from now, for example after all ranks were suspended."""
        self._since_s = time.monotonic()

    def reason(self, alive: Collection[int]) -> str | None:
        """Say why the ranks that are alive count as hung, None if they do not."""
        if self._timeout_s == 0 or not alive:
            return None
        found = [vital for vital in vitals.read(self._folder) if vital.rank in alive]
        limit = self._timeout_s
        if limit is None:
            if not any(vital.num_beats for vital in found):
                return None
            limit = DEFAULT_TIMEOUT_S
        now = time.monotonic()
        if now - max([self._since_s, *(max(v.progress_s, v.advance_s) for v in found)]) > limit:
            return f"no rank has made progress for {limit:g} s (--hang-timeout)"
        silent = [v.rank for v in found if now - max(self._since_s, v.heartbeat_s) > limit]
        if silent:
            return f"rank {silent[0]} has shown no sign of life for {limit:g} s (--hang-timeout)"
        return None


class StallWatch:
    """Tells, while the ranks of one attempt run on, that none of them moves, and where each of them stands.

    Args:
        folder: their vitals.
        stall_s: as `Job.stall_s`.
    """

    def __init__(self, folder: Path, stall_s: float | None) -> None:
        self._folder = folder
        self._stall_s = DEFAULT_STALL_S if stall_s is None else stall_s
        self._from_start = stall_s is not None
        self.reset()

    def reset(self) -> None:
        """Count from now, for example after all ranks were suspended."""
        self._since_s = time.monotonic()
        self._told_of_s: float | None = None  # the progress before the standstill that was told
        self._again_s = self._stall_s  # how long it must have lasted to be told

    def news(self, alive: Collection[int]) -> str:
        """Return what to tell now: a standstill, once and again when it has lasted twice as long, and its end."""
        if self._stall_s == 0 or not alive:
            return ""
        found = [vital for vital in vitals.read(self._folder) if vital.rank in alive]
        moved = [moved_s for vital in found if (moved_s := vital.moved_s) is not None]
        if not moved and not self._from_start:
            return ""
        moved_s = max([self._since_s, *moved])
        quiet_s = time.monotonic() - moved_s
        if self._told_of_s is not None and moved_s > self._told_of_s:
            text = f"the ranks advance again, after {moved_s - self._told_of_s:.0f} s"
            self._told_of_s, self._again_s = None, self._stall_s
            return text
        if quiet_s < self._again_s:
            return ""
        self._told_of_s, self._again_s = moved_s, 2 * self._again_s
        found, stacks = _observe(self._folder, alive)
        headline = f"no rank has advanced for {quiet_s:.0f} s (--stall), the run goes on"
        if found:
            culprit, why = _culprit(found, stacks)
            headline += f"; look at rank {culprit.rank}{': ' + why if why else ''}"
        places = {vital.rank: _where(vital, stacks[vital.rank]) for vital in found}
        return describe_places(headline, places, stacks, sorted(set(alive) - places.keys()))


def blame(folder: Path, alive: Collection[int], reason: str, gone: Mapping[int, float] | None = None) -> Failure:
    """Name the rank that holds the others up, with its stacks; the ranks must still be running.

    In this order: a rank that never began; a process that is stopped or whose heartbeat has ceased; a rank that has
    left, if all others wait; one that is not waiting in a collective as the others are; the one with the lowest (epoch,
    step); the one that stands elsewhere than most; the one whose phase nobody else is in.

    Args:
        folder: vitals of the attempt.
        alive: ranks to choose from.
        reason: why they count as hung.
        gone: ranks that have ended with exit 0, and when.
    """
    found, stacks = _observe(folder, alive)
    missing = set(alive) - {vital.rank for vital in found}
    places = {v.rank: _where(v, stacks[v.rank]) for v in found}
    if missing:
        headline = f"hangs: {reason}; it never began"
        return Failure(rank=min(missing), headline=headline, detail="", status=None, exitcode=1, places=places)
    culprit, why = _culprit(found, stacks)
    headline = f"hangs ({places[culprit.rank]}): {'; '.join(filter(None, (reason, why)))}"
    rank = culprit.rank
    if gone and not any(is_frozen(v) for v in found) and all(waits(stacks[v.rank]) for v in found):
        rank = min(gone, key=gone.__getitem__)
        headline = (
            f"had finished (exit 0) while rank {culprit.rank} still waits for it in a collective "
            f"({places[culprit.rank]}): {reason}; the ranks do not call the same collectives, here is rank "
            f"{culprit.rank}"
        )
    return Failure(
        rank=rank,
        headline=headline,
        detail=tidy(stacks[culprit.rank]),
        witness=culprit.rank,
        status=None,
        exitcode=1,
        places=places,
        waits=waits(stacks[culprit.rank]) > 0,
    )


def _where(vital: Vital, stacks: str) -> str:
    return ", at ".join(filter(None, (vital.place, place(stacks))))


def _observe(folder: Path, alive: Collection[int]) -> tuple[list[Vital], dict[int, str]]:
    """Return what the ranks say of themselves, and the stacks of those that can answer."""
    found = [vital for vital in vitals.read(folder) if vital.rank in alive]
    return found, read_stacks(found)


def _culprit(found: Sequence[Vital], stacks: Mapping[int, str]) -> tuple[Vital, str]:
    """Return the rank that holds the others up: by the collectives that torch has recorded, else by stacks alone."""
    states = rank_states(found, stacks)
    if any(group["calls"] for state in states for group in state.groups):
        verdict = find_culprit(states)
        if verdict.kind in {"missing", "mismatch", "crossed"}:
            return next(vital for vital in found if vital.rank == verdict.ranks[0]), verdict.text
    return _choose(found, stacks)


def _choose(found: Sequence[Vital], stacks: Mapping[int, str]) -> tuple[Vital, str]:
    """Return the rank that holds the others up, and how one knows; a lone one needs no reason."""
    frozen = [vital for vital in found if is_frozen(vital)]
    if frozen:
        stopped = is_stopped(frozen[0])
        return frozen[0], "its process is stopped (SIGSTOP)" if stopped else "its heartbeat has ceased"
    if len(found) == 1:
        return found[0], ""
    places = {vital.rank: place(stacks[vital.rank]) for vital in found}
    here = Counter(places.values())

    def suspect(vital: Vital) -> tuple[tuple[int, int], int, float]:
        return _progress(vital), here[places[vital.rank]], vital.progress_s

    waiting = {vital.rank: waits(stacks[vital.rank]) for vital in found}
    busy = [vital for vital in found if waiting[vital.rank] == min(waiting.values())]
    if len(busy) < len(found):
        return min(busy, key=suspect), "the others wait for it in a collective"
    behind, furthest = min(found, key=suspect), max(found, key=_progress)
    if _progress(behind) != _progress(furthest):
        return behind, f"it is behind the others (furthest: {furthest.place})"
    most, num_most = here.most_common(1)[0]
    if len(here) > 1 and num_most > len(found) / 2:
        odd = [vital for vital in found if places[vital.rank] != most]
        return min(odd, key=suspect), f"it stands elsewhere than the others ({num_most} of {len(found)} are at {most})"
    return _quietest(
        found, "all ranks are at the same place" if len(here) == 1 else "the ranks are at different places"
    )


def _quietest(found: Sequence[Vital], where: str) -> tuple[Vital, str]:
    phases = [vital.phase for vital in found]
    lone = [vital for vital in found if phases.count(vital.phase) == 1]
    first = min(lone or found, key=lambda vital: vital.progress_s)
    if lone:
        return first, "its phase differs from the others'"
    return first, f"{where}; it was the first to fall silent"


def _progress(vital: Vital) -> tuple[int, int]:
    none = -1
    return (none if vital.epoch is None else vital.epoch, none if vital.step is None else vital.step)
