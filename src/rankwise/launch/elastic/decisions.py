"""The data for decisions about a run of several nodes: rules, members, their ends, and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Action", "Cause", "Done", "End", "Lost", "Member", "Rules", "Say", "Start", "Stop", "done_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The settings that all nodes share because they are started with the same options.

    Attributes:
        min_nodes: minimum number of nodes of a round.
        max_nodes: maximum number of nodes of a round.
        max_restarts: how many rounds may fail before the run fails.
        join_timeout_s: how long to wait for nodes.
        others_may_host: other nodes may hold the rendezvous too, so after a network split two parts could go on.
    """

    min_nodes: int
    max_nodes: int
    max_restarts: int = 0
    join_timeout_s: float = 300.0
    others_may_host: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """How a node's ranks ended in a round.

    Attributes:
        status: "ended": all succeeded; "failed"; "again": saved and ended when asked to; "stopped": by a supervisor.
        rank: global rank of the failure.
        headline: one line about what happened.
        text: the whole report.
        exitcode: exit code for the launch.
        suspicion: as `RankEnd.suspicion`: 0 is a cause, 2 a consequence.
        failed_s: when it failed, on the coordinator's clock.
    """

    status: str
    rank: int = 0
    headline: str = ""
    text: str = ""
    exitcode: int = 0
    suspicion: int = 0
    failed_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class Member:
    """A node that takes part in the round or waits for the next one.

    Attributes:
        key: unique in the run; nodes that join later have greater keys.
        name: host name.
        address: address at which other nodes reach it.
        num_ranks: number of ranks that it starts.
        wish: the node rank that it asked for.
        home: whether it holds the rendezvous; it comes first among new nodes.
        port: port that it holds for rank 0; None while its ranks run.
        seat: its node rank in the newest round; None before its first.
        first_rank: global rank of its first rank in that round.
        done: how its ranks ended in this round.
        joined_s: when it joined.
        veteran: it was in the last round of a rendezvous that fell silent; the quorum counts such nodes.
    """

    key: int
    name: str
    address: str
    num_ranks: int
    wish: int | None = None
    home: bool = False
    port: int | None = None
    seat: int | None = None
    first_rank: int = 0
    done: Done | None = None
    joined_s: float = 0.0
    veteran: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start the ranks of these nodes, in this order."""

    number: int
    members: tuple[Member, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """End the ranks of the round; `in_peace`: let them save first."""

    in_peace: bool
    keys: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Report a failure: the whole report on its node and at the rendezvous, one line on other nodes."""

    key: int
    line: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Nodes were lost and the run goes on: record it in the run directory; `rank`: first rank of the first one."""

    line: str
    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """Print a message on all nodes."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The run is over.

    Attributes:
        exitcode: exit code of the failure; 0 without one.
        again: the ranks have saved; the same command continues the run.
        signal: the signal from outside that ended it.
        line: why it failed.
        rank: global rank of the failure.
    """

    exitcode: int = 0
    again: bool = False
    signal: int | None = None
    line: str = ""
    rank: int = 0


Action = Start | Stop | Cause | Lost | Say | End


def done_from(message: Mapping[str, Any], now: float) -> Done:
    """Read a node's report; missing fields get empty values."""
    age = message.get("age_s")
    texts = {name: str(message.get(name, "")) for name in ("status", "headline", "text")}
    numbers = {name: int(message.get(name) or 0) for name in ("rank", "exitcode", "suspicion")}
    return Done(**texts, **numbers, failed_s=now - float(age or 0.0))  # type: ignore[arg-type]
