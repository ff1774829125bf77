"""Which rank is the root cause: the earliest failure that is not a consequence of another failure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.errors import Interrupted
from rankwise.launch.failures.report import Report

__all__ = ["Failure", "RankEnd", "decide", "is_collateral", "is_timeout", "signal_name"]

_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|closed by (the )?(remote )?peer|socket closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted|connect(ion)? failure|failed to connect"
    r"|ping failed|stop_waiting|no longer reachable|recvvalue failed|sendbytes failed",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(
    r"timed out|timeout waiting|wait timeout|socket timeout|timeout after|watchdog caught collective"
    r"|did not arrive in time",
    re.IGNORECASE,
)
_OF_THE_NETWORK = re.compile(
    r"gloo|nccl|tcpstore|c10d|process ?group|dist(network|store|backend)?error|socket|connection|desyncerror|worlderror"
    r"|collective|rendezvous|brokenpipe",
    re.IGNORECASE,
)
_IN_A_COLLECTIVE = re.compile(r"torch[/.](distributed|autograd)|rankwise[/.](world|errors\.DesyncError)")
# the supervisor notices a rank's end later than its peers notice closed sockets; much later on a busy machine
_LEAVING_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How one rank of an attempt ended.

    Attributes:
        rank: global rank.
        status: exit status as in `subprocess`; None if the supervisor gave up waiting for the process.
        ended_s: when it ended, monotonic clock.
        report: its own report.
        sent: the last signal with which the supervisor asked it to end, None if it did not.
        sent_s: when the supervisor first did so.
        crash: Python stacks left by a crash inside C, "" if none.
        evidence: evidence that the kernel's OOM killer killed it, "" if there is none.
        finished_s: when its program ended, as it reported; None if it did not report that.
    """

    rank: int
    status: int | None
    ended_s: float
    report: Report | None = None
    sent: int | None = None
    sent_s: float | None = None
    crash: str = ""
    evidence: str = ""
    finished_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Return when it ended successfully without being asked to; None if it did not."""
        by_itself = self.ended_s if self.status == 0 and self.sent is None else None
        return by_itself if self.finished_s is None else self.finished_s

    @property
    def interrupted(self) -> bool:
        """Whether it saved and ended because it was asked to, together with all other ranks."""
        return self.status == Interrupted.EXIT_CODE

    @property
    def failed_s(self) -> float:
        """Return when the failure happened, as precisely as known."""
        return self.report.time_s if self.report is not None else self.ended_s

    @property
    def failed(self) -> bool:
        """Whether it failed on its own, before the supervisor asked it to end."""
        if self.report is None and self.status in (0, Interrupted.EXIT_CODE):
            return False
        return self.sent_s is None or self.failed_s < self.sent_s

    @property
    def suspicion(self) -> int:
        """Return 0 for a cause, 1 for an abort inside C, which a lost peer can also cause, 2 for the loss of a peer."""
        if self.report is not None:
            return 2 if is_collateral(self.report) else 0
        return 1 if self.status == -signal.SIGABRT else 0


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


def is_collateral(report: Report) -> bool:
    """Whether a rank failed because it lost a peer, or because its wait for a peer timed out."""
    if report.peers and report.rank not in report.peers:
        return True
    texts = [f"{report.type}: {report.message}", *report.causes]
    return any(_OF_THE_NETWORK.search(text) and (_LOST_PEER.search(text) or _TIMEOUT.search(text)) for text in texts)


def is_timeout(report: Report) -> bool:
    """Whether a rank's wait for a peer timed out; the peer may be alive."""
    texts = [f"{report.type}: {report.message}", *report.causes]
    return is_collateral(report) and any(_TIMEOUT.search(text) for text in texts)


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
    return Failure(
        rank=first.rank,
        headline=_headline(first),
        detail=first.report.traceback if first.report is not None else first.crash,
        # the supervisor may have stopped it together with the others during its exit
        status=first.status if first.report is None else first.report.exitcode,
        exitcode=_exitcode(first),
    )


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
        exitcode=_exitcode(waiting),
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


def _exitcode(end: RankEnd) -> int:
    if end.report is not None:
        return end.report.exitcode
    if end.status is None:
        return 1
    return 128 - end.status if end.status < 0 else end.status
