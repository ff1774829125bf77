"""Decide from heartbeats, progress and stacks whether a launch hangs, and which rank blocks the others."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from rankwise import vitals
from rankwise.launch.failures.culprit import choose
from rankwise.launch.failures.observation import describe_sightings, look, read_running, read_stacks
from rankwise.launch.failures.verdict import Failure
from rankwise.vitals.stacks import imports, tidy

__all__ = ["DEFAULT_STALL_S", "DEFAULT_TIMEOUT_S", "HangWatch", "StallWatch", "blame", "tell_standstill"]

DEFAULT_STALL_S = 180.0  # from the first beat or collective on
_UNSEEN = "none has started a collective or called rankwise.vitals.beat() yet, and other work cannot be seen"
DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; equals gloo's default timeout


class HangWatch:
    """Decides whether the ranks of one attempt still make progress.

    Args:
        folder: the folder of their vitals.
        timeout_s: as `Job.hang_timeout_s`.
    """

    def __init__(self, folder: Path, timeout_s: float | None) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self.reset()

    def reset(self) -> None:
        """Restart the count, for example after all ranks were suspended."""
        self._since_s = time.monotonic()

    def reason(self, alive: Collection[int]) -> str | None:
        """Return why the ranks that are alive count as hung, None if they do not."""
        return self.standstill(alive) or self.silence(alive)

    def standstill(self, alive: Collection[int]) -> str | None:
        """Return a text if no rank has made progress for too long, else None."""
        found, limit = self._found(alive)
        moved = max([self._since_s, *(max(vital.progress_s, vital.advance_s) for vital in found)])
        if limit and time.monotonic() - moved > limit:
            if any(vital.moved_s is not None for vital in found):
                return f"no rank has made progress for {limit:g} s (--hang-timeout)"
            return f"no rank was seen to make progress for {limit:g} s (--hang-timeout): {_UNSEEN}"
        return None

    def silence(self, alive: Collection[int]) -> str | None:
        """Return a text about a rank whose threads have not run for too long, None if there is none."""
        found, limit = self._found(alive)
        now = time.monotonic()
        silent = [vital.rank for vital in found if limit and now - max(self._since_s, vital.heartbeat_s) > limit]
        return f"rank {silent[0]} has shown no sign of life for {limit:g} s (--hang-timeout)" if silent else None

    def limit_s(self, alive: Collection[int]) -> float:
        """Return the limit in seconds, 0 for no limit."""
        return self._found(alive)[1]

    def _found(self, alive: Collection[int]) -> tuple[list[vitals.Vital], float]:
        if self._timeout_s == 0 or not alive:
            return [], 0.0
        found = read_running(self._folder, alive)
        default = DEFAULT_TIMEOUT_S if any(vital.num_beats for vital in found) else 0.0
        return found, default if self._timeout_s is None else self._timeout_s


class StallWatch:
    """Detects that no rank of an attempt makes progress, while the ranks run on.

    Args:
        folder: the folder of their vitals.
        stall_s: as `Job.stall_s`.
    """

    def __init__(self, folder: Path, stall_s: float | None) -> None:
        self._folder = folder
        self._stall_s = DEFAULT_STALL_S if stall_s is None else stall_s
        self._from_start = stall_s is not None
        self.reset()

    def reset(self) -> None:
        """Restart the count, for example after all ranks were suspended."""
        self._since_s = self._moved_s = time.monotonic()
        self._looked_s = self._since_s  # time of the last progress, as of the last look
        self._is_told = self._has_moved = False
        self._again_s = self._stall_s  # length at which the standstill is reported next

    def look(self, alive: Collection[int]) -> tuple[float | None, str]:
        """Return how long no rank has advanced, if that is to be reported now, and a text if a standstill has ended.

        A standstill is reported once, and again each time its length has doubled. Ranks that have not begun, or are
        still importing, get at least `DEFAULT_STALL_S` until one of them has advanced.
        """
        if self._stall_s == 0 or not alive:
            return None, ""
        quiet_s = self.quiet_s(alive)
        if quiet_s is None:
            return None, ""
        if self._moved_s > self._looked_s:
            text = f"the ranks advance again, after {self._moved_s - self._looked_s:.0f} s" if self._is_told else ""
            self._looked_s, self._is_told, self._again_s = self._moved_s, False, self._stall_s
            return None, text
        if quiet_s < self._again_s:
            return None, ""
        if not self._has_moved and quiet_s < DEFAULT_STALL_S and _begins(self._folder, alive):
            self._again_s = quiet_s + self._stall_s
            return None, ""
        self._again_s *= 2
        return quiet_s, ""

    def quiet_s(self, alive: Collection[int]) -> float | None:
        """Return the seconds since a rank last advanced; None if none has and `stall_s` was not set."""
        moved = [v.moved_s for v in read_running(self._folder, alive) if v.moved_s is not None]
        if not moved and not self._from_start:
            return None
        self._has_moved = bool(moved)
        self._moved_s = max([self._since_s, *moved])
        return time.monotonic() - self._moved_s

    def note_told(self) -> None:
        """Note that a standstill was reported, so that its end is reported too."""
        self._is_told = True


def _begins(folder: Path, alive: Collection[int]) -> bool:
    """Whether a rank has not begun yet, or is importing a module."""
    found = read_running(folder, alive)
    return len(found) < len(alive) or any(imports(stacks) for stacks in read_stacks(found).values())


def tell_standstill(quiet_s: float, folder: Path, alive: Collection[int]) -> str:
    """Return the text about a standstill of this machine's ranks: the likely culprit, and where each rank is."""
    found = look(read_running(folder, alive))
    headline = f"no rank has advanced for {quiet_s:.0f} s (--stall), the run continues"
    if all(vital.moved_s is None for vital in vitals.read(folder)):
        headline = f"no rank was seen to advance for {quiet_s:.0f} s (--stall): {_UNSEEN}; the run continues"
    if found:
        culprit, why = choose(found)
        headline += f"; look at rank {culprit.rank}{': ' + why if why else ''}"
    return describe_sightings(headline, found, sorted(set(alive) - {seen.rank for seen in found}))


def blame(folder: Path, alive: Collection[int], reason: str, gone: Mapping[int, float] | None = None) -> Failure:
    """Return a failure for the rank that blocks the others, with its stacks; the ranks must still be running.

    Checked in this order: a rank that never began; a process that is stopped or has no heartbeat; a rank that has
    exited, if all others wait; a rank that does not wait in a collective while others do; the rank with the lowest
    (epoch, step); the rank at another place than most; the only rank in its phase.

    Args:
        folder: vitals of the attempt.
        alive: ranks to choose from.
        reason: why they count as hung.
        gone: ranks that have ended with exit 0, and when.
    """
    found = look(read_running(folder, alive))
    missing = set(alive) - {seen.rank for seen in found}
    places = {seen.rank: seen.where for seen in found}
    if missing:
        headline = f"hangs: {reason}; it never started"
        return Failure(rank=min(missing), headline=headline, detail="", status=None, exitcode=1, places=places)
    culprit, why = choose(found)
    headline = f"hangs ({culprit.where}): {'; '.join(filter(None, (reason, why)))}"
    rank = culprit.rank
    if gone and not any(seen.frozen for seen in found) and all(seen.waits for seen in found):
        rank = min(gone, key=gone.__getitem__)
        headline = (
            f"had finished (exit 0) while rank {culprit.rank} still waits for it in a collective "
            f"({culprit.where}): {reason}; the ranks do not call the same collectives, here is rank "
            f"{culprit.rank}"
        )
    return Failure(
        rank=rank,
        headline=headline,
        detail=tidy(culprit.stacks),
        witness=culprit.rank,
        status=None,
        exitcode=1,
        places=places,
        waits=culprit.waits > 0,
    )
