"""What the ranks of an attempt have come to: which failure is clear, which rank hangs, who is to blame.

Nothing of it is needed before the ranks are started, so that an attempt loads it after.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rankwise.launch.failures import keep_standstill
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console
from rankwise.launch.local.hang import HangWatch, StallWatch, blame, tell_standstill
from rankwise.launch.local.messages import tell
from rankwise.launch.local.oom import OomWatch
from rankwise.launch.local.process import RankProcess
from rankwise.launch.observation import look, shortened
from rankwise.launch.verdict import Failure, RankEnd, decide, is_timeout

__all__ = ["Fellows", "Judge"]

SETTLE_S = 0.2  # how long to listen for an earlier failure once one is clear
SETTLE_COLLATERAL_S = 3.0  # how long to wait for the cause when only its consequences have shown
_ASK_AGAIN_S = 15.0  # the other nodes, while ours stand still and some of theirs move
_LATE_S = 30.0
_LOOK_S = 6.0  # to look at our ranks for other nodes: one that says nothing for 10 s counts as lost
SETTLE_TIMEOUT_S = 1.0  # the same when ranks gave up waiting: the cause may never show, it is alive and quiet


class Fellows(Protocol):
    """The other nodes of an attempt, which must hear of an end as soon as it begins."""

    def failing(self) -> None:
        """The ranks here are ended because one of them has failed."""

    def leaving(self, number: int) -> None:
        """The ranks here are asked to save and end, by a signal from outside."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """The ranks here stand still: do all others, and which rank holds all of them up?

        Args:
            question: `Judge.view`, and "final" (whether that ends the attempt), "limit_s" (for how long) and "reason".
        """


class Judge:
    """Watches the ranks of one attempt and finds the root cause of their end.

    Args:
        job: the launch.
        folder: the ranks' vitals.
        ranks: all of them, as they were started.
        console: where a standstill is told.
        begun_s: when the attempt began, monotonic clock.
        fellows: the other nodes, whose ranks may be the ones that hold ours up; None if there are none.

    Attributes:
        stop_s: when the ranks were first asked to end; None: not yet.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        ranks: Sequence[RankProcess],
        console: Console,
        *,
        begun_s: float,
        fellows: Fellows | None = None,
    ) -> None:
        self.stop_s: float | None = None
        self._job, self._folder, self._ranks, self._console = job, folder, ranks, console
        self._begun_s, self._fellows = begun_s, fellows
        self._asked_s = -math.inf  # when the other nodes were last asked who holds all of us up
        self._late_until_s: float | None = None  # how long to wait for their answer where a rank has given up waiting
        self._asked_until_s = -math.inf  # the same for what comes of the question of another node
        self._watch = HangWatch(folder, job.hang_timeout_s)
        self._stall = StallWatch(folder, job.stall_s)
        self._oom = OomWatch()
        self._hung: Failure | None = None

    def reset(self) -> None:
        """Count from now what counts from the last progress, for example after all ranks were suspended."""
        self._watch.reset()
        self._stall.reset()

    def evidence(self, pid: int) -> str:
        """Return what tells that a process was killed for want of memory, "" if nothing does."""
        return self._oom.evidence(pid)

    def decide(self) -> tuple[Failure | None, list[RankEnd]]:
        """Return the root cause of a failure, None without one, and every rank's end."""
        ends = self._ends()
        return self._hung or decide(ends), ends

    def settled_s(self) -> float | None:
        """When what has failed so far should be acted on; None if nothing has."""
        failed = [end for end in self._ends() if end.failed]
        if not failed:
            return None
        clear = [end for end in failed if end.suspicion < 2]
        if clear:
            return min(end.failed_s for end in clear) + SETTLE_S
        waited = any(end.report is not None and is_timeout(end.report) for end in failed)
        return min(end.failed_s for end in failed) + (SETTLE_TIMEOUT_S if waited else SETTLE_COLLATERAL_S)

    def blame_the_quiet(self) -> None:
        """When ranks have given up waiting for another one that still lives, that one is the cause."""
        alive, reason = self._given_up()
        if alive and reason:
            self._hung = self._blame(alive, reason)

    def awaits_fellows(self, now: float) -> bool:
        """Whether the cause may be a rank of another node: ours gave up waiting for it, or lost those that did."""
        if self._fellows is None or self._hung is not None:
            return False
        _, reason = self._given_up()
        if not reason:
            return now < self._asked_until_s and all(end.suspicion == 2 for end in self._ends() if end.failed)
        if self._late_until_s is None:
            self._late_until_s = now + _LATE_S
            self._fellows.ask({"final": True, "limit_s": 0.0, "reason": reason, **self.view()})
        return now < self._late_until_s

    @property
    def is_asking(self) -> bool:
        """Whether a rank has given up waiting, and the other nodes may say for whom."""
        until_s = self._asked_until_s if self._late_until_s is None else self._late_until_s
        return time.monotonic() < until_s

    def note_asked(self) -> None:
        """Another node asks who holds all of us up, and will end the attempt: that is the verdict to wait for."""
        self._asked_until_s = time.monotonic() + _LATE_S

    def _given_up(self) -> tuple[set[int], str]:
        """Return who is alive and has not failed, and which rank gave up waiting for one, "" if none did."""
        failed = [end for end in self._ends() if end.failed]
        reports = [end.report for end in failed if end.report is not None and is_timeout(end.report)]
        alive = self._alive() - {end.rank for end in failed}
        if not reports or not all(end.suspicion == 2 for end in failed):
            return alive, ""
        waiting = min(reports, key=lambda report: report.time_s)
        return alive, f"rank {waiting.rank} gave up waiting for it ({waiting.type})"

    def finds_hang(self, now: float) -> bool:
        """Whether the ranks hang, and the one to blame was found; a standstill that is not final is told."""
        alive = self._alive()
        reason = self._watch.standstill(alive)
        if reason is not None and self._fellows is not None and self._watch.silence(alive) is None:
            self._ask(now, alive, reason, self._watch.limit_s(alive), final=True)  # one of theirs may be to blame
            return False
        reason = reason or self._watch.silence(alive)
        if reason is None and self._job.timeout_s is not None and now - self._begun_s > self._job.timeout_s:
            reason = f"not done after {self._job.timeout_s:g} s (timeout)"
        if reason is not None:
            self._hung = self._blame(alive, reason)
            return True
        quiet_s, news = self._stall.look(alive)
        if quiet_s is not None and self._fellows is not None:
            self._ask(now, alive, "", quiet_s, final=False)
        elif quiet_s is not None:
            news = tell_standstill(quiet_s, self._folder, alive)
            self._stall.note_told()
            keep_standstill(self._job.run_dir, news, self._console.say)
        if news:
            tell(self._console, news)
        return False

    def _ask(self, now: float, alive: set[int], reason: str, limit_s: float, *, final: bool) -> None:
        if now >= self._asked_s + _ASK_AGAIN_S or not final:
            assert self._fellows is not None
            self._asked_s = now
            self._fellows.ask({"final": final, "limit_s": limit_s, "reason": reason, **self.view(alive)})

    def view(self, alive: set[int] | None = None) -> dict[str, Any]:
        """Return what is seen of the ranks here that run, as it travels to other nodes."""
        alive = self._given_up()[0] if alive is None else alive
        found = look(self._folder, alive, _LOOK_S)
        missing = sorted(alive - {seen.rank for seen in found})
        quiet_s = self._stall.quiet_s(alive)
        return {"quiet_s": quiet_s, "missing": missing, "ranks": [seen.to_dict() for seen in shortened(found)]}

    def note_told(self) -> None:
        """A standstill of all nodes was told."""
        self._stall.note_told()

    def note_blamed(self, failure: Failure | None) -> None:
        """All nodes were looked at: a rank here is to blame, or (None) nobody can be named."""
        self._hung, self._late_until_s = failure, -math.inf

    def _alive(self) -> set[int]:
        return {process.rank for process in self._ranks if process.status is None}

    def _ends(self) -> list[RankEnd]:
        return [
            RankEnd(
                rank=process.rank,
                status=process.status,
                ended_s=process.ended_s or time.monotonic(),
                report=process.report,
                sent=process.sent,
                sent_s=self.stop_s if process.sent is not None else None,
                crash=self._crash(process),
                evidence=process.evidence,
                finished_s=process.finished_s,
            )
            for process in self._ranks
            if process.status is not None or process.report is not None or self.stop_s is not None
        ]

    def _blame(self, alive: set[int], reason: str) -> Failure:
        gone = {end.rank: end.left_s for end in self._ends() if end.left_s is not None and end.rank not in alive}
        return blame(self._folder, alive, reason, gone)

    def _crash(self, process: RankProcess) -> str:
        if process.status is None or process.status >= 0:
            return ""
        path = self._folder / f"crash-{process.rank}"
        return path.read_text(errors="replace") if path.exists() else ""
