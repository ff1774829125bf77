"""What the ranks of an attempt have come to: which failure is clear, which rank hangs, who is to blame.

Nothing of it is needed before the ranks are started, so that an attempt loads it after.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rankwise.launch.job import Job
from rankwise.launch.local.console import Console
from rankwise.launch.local.hang import HangWatch, StallWatch, blame
from rankwise.launch.local.oom import OomWatch
from rankwise.launch.local.process import RankProcess
from rankwise.launch.local.telling import tell
from rankwise.launch.verdict import Failure, RankEnd, decide, is_timeout

__all__ = ["Judge"]

SETTLE_S = 0.2  # how long to listen for an earlier failure once one is clear
SETTLE_COLLATERAL_S = 3.0  # how long to wait for the cause when only its consequences have shown
SETTLE_TIMEOUT_S = 1.0  # the same when ranks gave up waiting: the cause may never show, it is alive and quiet


class Judge:
    """Watches the ranks of one attempt and finds the root cause of their end.

    Args:
        job: the launch.
        folder: the ranks' vitals.
        ranks: all of them, as they were started.
        console: where a standstill is told.
        begun_s: when the attempt began, monotonic clock.

    Attributes:
        stop_s: when the ranks were first asked to end; None: not yet.
    """

    def __init__(
        self, job: Job, folder: Path, ranks: Sequence[RankProcess], console: Console, *, begun_s: float
    ) -> None:
        self.stop_s: float | None = None
        self._job, self._folder, self._ranks, self._console = job, folder, ranks, console
        self._begun_s = begun_s
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
        failed = [end for end in self._ends() if end.failed]
        reports = [end.report for end in failed if end.report is not None and is_timeout(end.report)]
        alive = self._alive() - {end.rank for end in failed}
        if alive and reports and all(end.suspicion == 2 for end in failed):
            waiting = min(reports, key=lambda report: report.time_s)
            self._hung = self._blame(alive, f"rank {waiting.rank} gave up waiting for it ({waiting.type})")

    def finds_hang(self, now: float) -> bool:
        """Whether the ranks hang, and the one to blame was found; a standstill that is not final is told."""
        alive = self._alive()
        reason = self._watch.reason(alive)
        if reason is None and self._job.timeout_s is not None and now - self._begun_s > self._job.timeout_s:
            reason = f"not done after {self._job.timeout_s:g} s (timeout)"
        if reason is not None:
            self._hung = self._blame(alive, reason)
            return True
        news = self._stall.news(alive)
        if news:
            tell(self._console, news)
        return False

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
