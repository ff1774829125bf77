"""Which rank is the root cause: the earliest failure that is not a consequence of another failure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankwise.errors import Interrupted

if TYPE_CHECKING:
    from rankwise.launch.local.process import RankEnd

_IN_A_COLLECTIVE = re.compile(r"torch[/.](distributed|autograd)|rankwise[/.](world|errors\.DesyncError)")
# the supervisor notices a rank's end later than its peers notice closed sockets; much later on a busy machine
_LEAVING_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """The root cause of a failed attempt.

    Attributes:
        rank: global rank.
        headline: one line about what happened.
        detail: traceback or stacks, "" if there are none.
        status: its exit status; None if it hung or had succeeded.
        exitcode: the exit code for the whole launch.
        witness: the rank that `detail` comes from; None if it is this one.
        places: for a hang: where each rank was.
        waits: for a hang: this rank itself waits for others; the cause may be on another node.
    """

    rank: int
    headline: str
    detail: str
    status: int | None
    exitcode: int
    witness: int | None = None
    places: Mapping[int, str] = field(default_factory=dict)
    waits: bool = False


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def decide(ends: Sequence[RankEnd]) -> Failure | None:
    """Return the root cause among the ends of all ranks; None if every rank succeeded or was asked to end."""
    failed = sorted((end for end in ends if end.failed), key=lambda end: (end.suspicion, end.failed_s))
    if not failed:
        return None
    first = failed[0]
    if first.suspicion == 2 and first.report is not None and _IN_A_COLLECTIVE.search(first.report.traceback):
        until_s = min(end.failed_s for end in failed) + _LEAVING_S
        gone = {end.rank: end.left_s for end in ends if end.left_s is not None and end.left_s < until_s}
        if gone:
            return _left_early(next(end for end in ends if end.rank == min(gone, key=gone.__getitem__)), first)
    if first.report is not None:
        # not its status: the supervisor may have stopped it together with the others during its exit
        status = exitcode = first.report.exitcode
        detail = first.report.traceback
    else:
        assert first.status is not None  # it has failed
        status, detail = first.status, first.crash
        exitcode = 128 - status if status < 0 else status
    return Failure(rank=first.rank, headline=_headline(first), detail=detail, status=status, exitcode=exitcode)


def _left_early(gone: RankEnd, waiting: RankEnd) -> Failure:
    assert waiting.report is not None
    status = Interrupted.EXIT_CODE if gone.interrupted else 0  # the signal that stopped it does not matter
    return Failure(
        rank=gone.rank,
        headline=f"had finished (exit {status}) while rank {waiting.rank} still waited for it in a collective; "
        f"the ranks do not call the same collectives, here is rank {waiting.rank}",
        detail=waiting.report.traceback,
        witness=waiting.rank,
        status=status,
        exitcode=waiting.report.exitcode,
    )


def _headline(end: RankEnd) -> str:
    if end.report is not None and end.report.type == "SystemExit":
        return f"exited with {end.report.exitcode}"
    if end.report is not None:
        first = (end.report.message.strip().splitlines() or [""])[0]
        return f"raised {end.report.type}: {first[:160]}" if first else f"raised {end.report.type}"
    if end.status is None or end.status >= 0:
        return f"exited with {end.status}, without a Python exception (os._exit, or an exit inside C)"
    name = signal_name(-end.status)
    if end.evidence:
        return f"was ended by {name}: out of memory; {end.evidence}"
    hint = {
        "SIGKILL": ": sent from outside, or by the kernel for lack of memory (see dmesg)",
        "SIGBUS": ": often a full /dev/shm, or a file that became shorter while it was mapped",
    }.get(name, "")
    return f"was ended by {name}{hint}"
