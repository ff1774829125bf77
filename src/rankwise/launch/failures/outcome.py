"""The outcome of a launch, and its text for the user."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankwise.errors import Interrupted
from rankwise.launch.failures.verdict import Failure, signal_name

if TYPE_CHECKING:
    from rankwise.launch.local.process import RankEnd

__all__ = ["Outcome", "describe_failure", "describe_others"]

_WIDTH = 72
_CHARACTERS = 1 << 16  # most of a traceback on the console; the log of the rank has all of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a launch.

    Attributes:
        failure: the root cause; None if every rank ended well, or if the launch was stopped from outside.
        interrupted: the signal that stopped it from outside, None if none did.
        again: the ranks saved and ended because a signal or their time limit asked them to: the same command continues
            the run.
        num_attempts: how often the ranks were started.
        text: the failure as printed, "" without one.
    """

    failure: Failure | None = None
    interrupted: int | None = None
    again: bool = False
    num_attempts: int = 1
    text: str = ""

    @property
    def exitcode(self) -> int:
        """The exit code of the command."""
        if self.again:
            return Interrupted.EXIT_CODE
        if self.interrupted is not None:
            return 128 + self.interrupted
        return self.failure.exitcode if self.failure is not None else 0


def describe_failure(failure: Failure, num_ranks: int, ends: Sequence[RankEnd]) -> str:
    """Return the text of a failure: its traceback once, then one line for each other rank of this machine."""
    host = socket.gethostname()
    lines = [f"rank {failure.rank} of {num_ranks} on {host} {failure.headline}"]
    if failure.detail:
        witness = failure.rank if failure.witness is None else failure.witness
        title, detail, half = f"---- rank {witness} on {host} ", failure.detail.rstrip("\n"), _CHARACTERS // 2
        if len(detail) > 2 * half:  # a message may hold a whole array
            left_out = len(detail) - 2 * half
            detail = f"{detail[:half]}\n... {left_out:,} characters are not shown here ...\n{detail[-half:]}"
        lines += [title + "-" * (_WIDTH - len(title)), detail, "-" * _WIDTH]
    return "\n".join([*lines, *describe_others(ends, failure)])


def describe_others(ends: Sequence[RankEnd], failure: Failure) -> list[str]:
    """Return one line for each rank that is not the root cause: how it ended."""
    root = next((end for end in ends if end.rank == failure.rank and end.failed), None)
    lines = []
    for end in ends:
        place = failure.places.get(end.rank)
        if end.rank != failure.rank:
            lines.append(f"rank {end.rank}: {_describe_end(end, root)}{'; was at ' + place if place else ''}")
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
