"""How an attempt and a launch ended, for the user and for the run directory."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise.errors import Interrupted
from rankwise.launch.failures.verdict import Failure, signal_name

if TYPE_CHECKING:
    from rankwise.launch.local.process import RankEnd

_WIDTH = 72
_CHARACTERS = 1 << 16  # most of a traceback on the console; the log of the rank has all of it
_RECORDED = 16_000  # characters of the end of a traceback in the run directory


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a launch.

    Attributes:
        failure: the root cause; None if every rank ended well, or if the launch was stopped from outside.
        interrupted: the signal that stopped it from outside, None if none did.
        again: the ranks saved and ended because a signal or their time limit asked them to: the same command continues
            the run.
        text: the failure as printed, "" without one.
    """

    failure: Failure | None = None
    interrupted: int | None = None
    again: bool = False
    text: str = ""

    @property
    def exitcode(self) -> int:
        """The exit code of the command."""
        if self.again:
            return Interrupted.EXIT_CODE
        if self.interrupted is not None:
            return 128 + self.interrupted
        return self.failure.exitcode if self.failure is not None else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """How an attempt ended on this machine.

    Attributes:
        failure: the root cause, None without one.
        ranks: the ends of the ranks of this machine.
        world_size: number of ranks on all machines.
        number: number of the attempt in this launch, from 0.
        interrupted: the signal that stopped it from outside, None if none did.
        step: the highest step that a rank reported, None if none did.
        logs: folder of the attempt's logs, None without logs.
    """

    failure: Failure | None
    ranks: Sequence[RankEnd]
    world_size: int
    number: int = 0
    interrupted: int | None = None
    step: int | None = None
    logs: Path | None = None

    @property
    def again(self) -> bool:
        """Whether the ranks saved and ended because they were asked to."""
        return self.failure is None and any(end.interrupted for end in self.ranks)

    @property
    def _root(self) -> RankEnd | None:
        """The end of the rank that failed; None if it hung, or had finished."""
        rank = None if self.failure is None else self.failure.rank
        return next((end for end in self.ranks if end.rank == rank and end.failed), None)

    @property
    def suspicion(self) -> int:
        """As `RankEnd.suspicion`, of the failure; a rank that hangs while it waits may hang because of another node."""
        root = self._root
        if root is None or self.failure is None or self.failure.status is None:
            return int(self.failure is not None and self.failure.waits)
        return root.suspicion

    @property
    def age_s(self) -> float:
        """Seconds since the failure: monotonic clocks of different machines are not comparable."""
        return 0.0 if self._root is None else time.monotonic() - self._root.failed_s

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Return the text of the failure, and its entry for `failures.record.keep`; call it soon after the end."""
        failure, host = self.failure, socket.gethostname()
        assert failure is not None
        witness = failure.rank if failure.witness is None else failure.witness
        others, status = self._others(failure), failure.status
        lines = [f"rank {failure.rank} of {self.world_size} on {host} {failure.headline}"]
        if failure.detail:
            title, detail, half = f"---- rank {witness} on {host} ", failure.detail.rstrip("\n"), _CHARACTERS // 2
            if len(detail) > 2 * half:  # a message may hold a whole array
                left_out = len(detail) - 2 * half
                detail = f"{detail[:half]}\n... {left_out:,} characters are not shown here ...\n{detail[-half:]}"
            lines += [title + "-" * (_WIDTH - len(title)), detail, "-" * _WIDTH]
        lines += others + ([] if self.logs is None else [f"logs: {self.logs}"])
        return "\n".join(lines), {
            "time": time.time() - self.age_s,
            "attempt": self.number,
            "host": host,
            "rank": failure.rank,
            "world_size": self.world_size,
            "cause": failure.headline,
            "exitcode": failure.exitcode,
            "status": status,
            "signal": signal_name(-status) if status is not None and status < 0 else None,
            "step": self.step,
            "hang": failure.headline if self._root is None else None,
            "traceback": failure.detail[-_RECORDED:],
            "traceback_of": witness,
            "places": {str(rank): where for rank, where in failure.places.items()},
            "others": others,
            "logs": None if self.logs is None else str(self.logs),
        }

    def _others(self, failure: Failure) -> list[str]:
        """Return one line for each rank that is not the root cause: how it ended."""
        lines = []
        for end in self.ranks:
            place = failure.places.get(end.rank)
            if end.rank != failure.rank:
                lines.append(f"rank {end.rank}: {_describe_end(end, self._root)}{'; was at ' + place if place else ''}")
        return lines


def _describe_end(end: RankEnd, root: RankEnd | None) -> str:
    if end.failed:
        seconds = 0.0 if root is None else end.failed_s - root.failed_s
        later = "" if root is None else f" {abs(seconds):.1f} s {'later' if seconds >= 0 else 'before'}"
        if end.report is not None and end.report.is_collateral:
            return f"collateral{later}: {_short(end)}"
        if root is not None and _short(end) == _short(root):
            return f"failed in the same way{later}"
        return f"failed as well{later}: {_short(end)}"
    if end.interrupted:
        return f"had saved and ended (exit {end.status})"
    if end.sent is not None:
        how = f"exit {end.status}" if (end.status or 0) >= 0 else signal_name(-(end.status or 0))
        return f"stopped by rankwise ({how})"
    return "had finished (exit 0)"


def _short(end: RankEnd) -> str:
    if end.report is not None:
        first = (end.report.message.strip().splitlines() or [""])[0]
        text = f"{end.report.type}: {first}"
        return text if len(text) <= 160 else text[:157] + "..."
    status = end.status or 0
    return f"ended by {signal_name(-status)}" if status < 0 else f"exit {status}"
