"""Decide from heartbeats, progress and stacks whether the ranks of this machine hang or stand still."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from rankwise.launch.failures.culprit import choose
from rankwise.launch.failures.observation import describe_observations, observe, read_running, read_stacks
from rankwise.vitals.stacks import imports

DEFAULT_STALL_S = 180.0  # from the first beat or collective on
_UNSEEN = "none has started a collective or called rankwise.vitals.beat() yet, and other work cannot be seen"
DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; equals gloo's default timeout


class ProgressWatch:
    """Decides whether the ranks of one attempt still make progress.

    Attributes:
        limit_s: seconds without progress after which the ranks hang, as of the last `hang`; 0: no limit.
        is_told: whether the present standstill was reported, so that its end is reported too.
    """

    def __init__(self, folder: Path, hang_timeout_s: float | None, stall_s: float | None) -> None:
        self.limit_s = 0.0
        self._folder, self._hang_timeout_s = folder, hang_timeout_s
        self._stall_s = DEFAULT_STALL_S if stall_s is None else stall_s
        self._from_start = stall_s is not None
        self.reset()

    def reset(self) -> None:
        """Restart the counts, for example after all ranks were suspended."""
        self._since_s = self._moved_s = time.monotonic()
        self._looked_s = self._since_s  # time of the last progress, as of the last look
        self.is_told = self._has_moved = False
        self._again_s = self._stall_s  # length at which the standstill is reported next

    def hang(self, alive: Collection[int]) -> tuple[str, str]:
        """Return two texts about the ranks that are alive, each "" if it is not so.

        The first: no rank has made progress for too long. The second: the threads of a rank have not run for too long.
        """
        if self._hang_timeout_s == 0 or not alive:
            return "", ""
        found, now = read_running(self._folder, alive), time.monotonic()
        default_s = DEFAULT_TIMEOUT_S if any(vital.num_beats for vital in found) else 0.0
        limit = self.limit_s = default_s if self._hang_timeout_s is None else self._hang_timeout_s
        if not limit:
            return "", ""
        still = silent = ""
        if now - max([self._since_s, *(max(vital.progress_s, vital.advance_s) for vital in found)]) > limit:
            still = f"no rank has made progress for {limit:g} s (--hang-timeout)"
            if all(vital.moved_s is None for vital in found):
                still = f"no rank was seen to make progress for {limit:g} s (--hang-timeout): {_UNSEEN}"
        dead = [vital.rank for vital in found if now - max(self._since_s, vital.heartbeat_s) > limit]
        if dead:
            silent = f"rank {dead[0]} has shown no sign of life for {limit:g} s (--hang-timeout)"
        return still, silent

    def stall(self, alive: Collection[int]) -> tuple[float | None, str]:
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
            text = f"the ranks advance again, after {self._moved_s - self._looked_s:.0f} s" if self.is_told else ""
            self._looked_s, self.is_told, self._again_s = self._moved_s, False, self._stall_s
            return None, text
        if quiet_s < self._again_s:
            return None, ""
        if not self._has_moved and quiet_s < DEFAULT_STALL_S:
            found = read_running(self._folder, alive)
            if len(found) < len(alive) or any(imports(stacks) for stacks in read_stacks(found).values()):
                self._again_s = quiet_s + self._stall_s
                return None, ""
        self._again_s *= 2
        return quiet_s, ""

    def quiet_s(self, alive: Collection[int]) -> float | None:
        """Return the seconds since a rank last advanced; None if none has and `stall_s` was not set."""
        moved = [vital.moved_s for vital in read_running(self._folder, alive) if vital.moved_s is not None]
        if not moved and not self._from_start:
            return None
        self._has_moved = bool(moved)
        self._moved_s = max([self._since_s, *moved])
        return time.monotonic() - self._moved_s


def tell_standstill(quiet_s: float, folder: Path, alive: Collection[int]) -> str:
    """Return the text about a standstill of this machine's ranks: the likely culprit, and where each rank is."""
    running = read_running(folder, alive)
    found = observe(running)
    headline = f"no rank has advanced for {quiet_s:.0f} s (--stall), the run continues"
    if all(vital.moved_s is None for vital in running):
        headline = f"no rank was seen to advance for {quiet_s:.0f} s (--stall): {_UNSEEN}; the run continues"
    if found:
        culprit, why = choose(found)
        headline += f"; look at rank {culprit.rank}{': ' + why if why else ''}"
    return describe_observations(headline, found, sorted(set(alive) - {seen.rank for seen in found}))
