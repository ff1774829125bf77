"""Finds the failure of an attempt: which failure is clear, which rank hangs, which rank is the cause.

An attempt imports this module only after it has started the ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rankwise._process.cores import group_folders
from rankwise.launch.failures.culprit import blame, choose
from rankwise.launch.failures.observation import describe_observations, observe, read_running, read_stacks, shortened
from rankwise.launch.failures.record import keep_standstill
from rankwise.launch.failures.verdict import Failure, decide
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.loop import CHECK_INTERVAL_S
from rankwise.launch.local.process import RankProcess
from rankwise.vitals.stacks import imports

DEFAULT_STALL_S = 180.0  # from the first beat or collective on
_UNSEEN = "none has started a collective or called rankwise.vitals.beat() yet, and other work cannot be seen"
DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; equals gloo's default timeout
SETTLE_S = 0.2  # how long to wait for an earlier failure once one is clear
SETTLE_COLLATERAL_S = 3.0  # how long to wait for the cause if only consequences of it are known
_ASK_AGAIN_S = 15.0  # how often to ask the other nodes while only the ranks here stand still
_LATE_S = 30.0
_LOOK_S = 6.0  # limit for looking at the ranks here for other nodes, which take a node that is silent for 10 s as lost
SETTLE_TIMEOUT_S = 1.0  # the same after a timeout of a rank: the cause may be alive and never report anything
_LOG = Path("/dev/kmsg")  # the kernel's
_RECORD_BYTES = 8192
_SLACK_S = 1.0  # tolerated difference between the log's clock and this one


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


class OtherNodes(Protocol):
    """The interface to the other nodes of an attempt."""

    def failing(self) -> None:
        """Tell the other nodes that the ranks here are being ended because one of them failed."""

    def leaving(self, number: int) -> None:
        """Tell the other nodes that a signal from outside asks the ranks here to save and end."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """The ranks here stand still: ask whether all other ranks do too, and which rank blocks them.

        Args:
            question: `FailureDetector.view`, and "final" (whether the answer ends the attempt), "limit_s" and "reason".
        """


class FailureDetector:
    """Watches the ranks of one attempt and finds the root cause of their end.

    Attributes:
        watch: decides whether the ranks make progress.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        ranks: Sequence[RankProcess],
        console: Console,
        *,
        begun_s: float,
        other_nodes: OtherNodes | None = None,
    ) -> None:
        self._job, self._folder, self._ranks, self._console = job, folder, ranks, console
        self._begun_s, self._other_nodes = begun_s, other_nodes
        self._asked_s = -math.inf  # when the other nodes were last asked for the culprit
        self._late_until_s: float | None = None  # until when to wait for their answer after a rank's timeout
        self._asked_until_s = -math.inf  # until when to wait for the answer to another node's question
        self.watch = ProgressWatch(folder, job.hang_timeout_s, job.stall_s)
        self._next_check_s = begun_s + CHECK_INTERVAL_S
        self._oom_kills = dict(_oom_kills())
        self._hung: Failure | None = None

    def examine(self, process: RankProcess) -> None:
        """If a signal has just ended a process, note the stacks that it left, and whether the OOM killer sent it."""
        if process.status is not None and process.status < 0:
            with contextlib.suppress(FileNotFoundError):
                process.crash = (self._folder / f"crash-{process.rank}").read_text(errors="replace")
        if process.status == -signal.SIGKILL and process.sent is None:
            process.evidence = _oom_evidence(process.pid, self._begun_s, self._oom_kills)

    def decide(self) -> Failure | None:
        """Return the root cause of a failure, None if there is none."""
        return self._hung or decide(self._ranks)

    def due_s(self, now: float) -> float:
        """Return when to look again, even without an event."""
        if now < (self._asked_until_s if self._late_until_s is None else self._late_until_s):
            return now + CHECK_INTERVAL_S  # wait for the other nodes; their answer wakes the loop
        settled_s = self._settled_s()
        return self._next_check_s if settled_s is None else settled_s

    def finds_failure(self, now: float) -> bool:
        """Whether the attempt has failed, and the ranks that are left are to be ended."""
        settled_s = self._settled_s()
        if settled_s is None:
            if now < self._next_check_s:
                return False
            self._next_check_s = now + CHECK_INTERVAL_S
            return self._finds_hang(now)
        if now < settled_s or self.awaits_other_nodes(now):
            return False
        alive, reason = self._timed_out()
        if alive and reason:  # ranks timed out waiting for a peer that is alive: it is the cause
            self._hung = self._blame(alive, reason)
        return True

    def _settled_s(self) -> float | None:
        """Return when to act on the failures so far; None if there are none."""
        failed = self._failed()
        if not failed:
            return None
        clear = [end for end in failed if end.suspicion < 2]
        if clear:
            return min(end.failed_s for end in clear) + SETTLE_S
        waited = any(end.report is not None and end.report.is_timeout for end in failed)
        return min(end.failed_s for end in failed) + (SETTLE_TIMEOUT_S if waited else SETTLE_COLLATERAL_S)

    def awaits_other_nodes(self, now: float) -> bool:
        """Whether the cause may be on another node: a rank here timed out waiting for it, or lost a peer that did."""
        if self._other_nodes is None or self._hung is not None:
            return False
        _, reason = self._timed_out()
        if not reason:
            return now < self._asked_until_s and all(end.suspicion == 2 for end in self._failed())
        if self._late_until_s is None:
            self._late_until_s = now + _LATE_S
            self._other_nodes.ask({"final": True, "limit_s": 0.0, "reason": reason, **self.view()})
        return now < self._late_until_s

    def _timed_out(self) -> tuple[set[int], str]:
        """Return the ranks that live and have not failed, and a text about the rank that timed out, "" if none did."""
        failed = self._failed()
        reports = [end.report for end in failed if end.report is not None and end.report.is_timeout]
        alive = self._alive() - {end.rank for end in failed}
        if not reports or not all(end.suspicion == 2 for end in failed):
            return alive, ""
        waiting = min(reports, key=lambda report: report.time_s)
        return alive, f"rank {waiting.rank} gave up waiting for it ({waiting.type})"

    def _finds_hang(self, now: float) -> bool:
        """Whether the ranks hang and a culprit was found; report a standstill that does not end the attempt."""
        alive = self._alive()
        still, silent = self.watch.hang(alive)
        if still and not silent and self._other_nodes is not None:
            self._ask(now, still, self.watch.limit_s, final=True)  # the cause may be there
            return False
        reason = still or silent
        if not reason and self._job.timeout_s is not None and now - self._begun_s > self._job.timeout_s:
            reason = f"not finished after {self._job.timeout_s:g} s (timeout)"
        if reason:
            self._hung = self._blame(alive, reason)
            return True
        quiet_s, news = self.watch.stall(alive)
        if quiet_s is not None and self._other_nodes is not None:
            self._ask(now, "", quiet_s, final=False)
        elif quiet_s is not None:
            news = tell_standstill(quiet_s, self._folder, alive)
            self.watch.is_told = True
            keep_standstill(self._job.run_dir, news, self._console.log)
        if news:
            log_text(self._console, news)
        return False

    def _ask(self, now: float, reason: str, limit_s: float, *, final: bool) -> None:
        if now >= self._asked_s + _ASK_AGAIN_S or not final:
            assert self._other_nodes is not None
            self._asked_s = now
            self._other_nodes.ask({"final": final, "limit_s": limit_s, "reason": reason, **self.view()})

    def view(self, *, final: bool = False) -> dict[str, Any]:
        """Return the state of the running ranks here, in the form sent to other nodes.

        Args:
            final: another node asks for the culprit, and its verdict will end the attempt: wait for that.
        """
        if final:
            self._asked_until_s = time.monotonic() + _LATE_S
        alive, _ = self._timed_out()
        found = observe(read_running(self._folder, alive), _LOOK_S)
        missing = sorted(alive - {seen.rank for seen in found})  # they have not begun
        quiet_s = self.watch.quiet_s(alive)
        return {"quiet_s": quiet_s, "missing": missing, "ranks": [seen.to_dict() for seen in shortened(found)]}

    def note_blamed(self, failure: Failure | None) -> None:
        """Note the verdict over all nodes: a rank here is the culprit, or None was found."""
        self._hung, self._late_until_s = failure, -math.inf

    def _alive(self) -> set[int]:
        return {process.rank for process in self._ranks if process.status is None}

    def _failed(self) -> list[RankProcess]:
        return [process for process in self._ranks if process.failed]

    def _blame(self, alive: set[int], reason: str) -> Failure:
        gone = {end.rank: end.left_s for end in self._ranks if end.left_s is not None and end.rank not in alive}
        found = observe(read_running(self._folder, alive))
        return blame(found, alive - {seen.rank for seen in found}, reason, gone=gone)


def _oom_evidence(pid: int, begun_s: float, before: Mapping[Path, int]) -> str:
    """Return evidence that the OOM killer killed a process, "" if there is none or it is not readable.

    Args:
        pid: the process.
        begun_s: when the attempt began: earlier entries of the kernel's log are about other processes.
        before: the kills that the cgroups of this process, which its ranks share, had counted then.
    """
    for stamp_s, text in _log_entries():
        if f"Killed process {pid} (" in text and stamp_s > begun_s - _SLACK_S:
            return f"the kernel's log says: {text}"
    for folder, number in _oom_kills():
        if number > before.get(folder, number):
            return f"control group {folder} killed processes for lack of memory{_limit(folder)}"
    return ""


def _log_entries() -> Iterator[tuple[float, str]]:
    """Yield the entries of the kernel's log, if readable: seconds since boot, text."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with contextlib.suppress(OSError), os.fdopen(os.open(_LOG, flags), "rb", buffering=0) as log:
        while True:
            try:
                record = log.read(_RECORD_BYTES)
            except BrokenPipeError:
                continue  # the entry was overwritten during the read: continue with the oldest one left
            if not record:
                return  # end of the log
            head, _, text = record.partition(b"\n")[0].decode(errors="replace").partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[2].isdecimal():
                yield int(fields[2]) / 1e6, text


def _oom_kills() -> Iterator[tuple[Path, int]]:
    """Yield the cgroups of this process and their OOM kill counts; for cgroup v2, child groups are included."""
    for folder, version in group_folders("memory"):
        with contextlib.suppress(OSError):
            text = (folder / ("memory.oom_control" if version == 1 else "memory.events")).read_text()
            found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
            if found:
                yield folder, int(found[1])


def _limit(folder: Path) -> str:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return f" (its limit: {int((folder / name).read_text()) / (1 << 20):,.0f} MiB)"
    return ""
