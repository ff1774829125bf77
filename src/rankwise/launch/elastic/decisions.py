"""What is decided about a run of several nodes, and from what: rules, members, their ends, and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Action", "Cause", "Done", "End", "Lost", "Member", "Rules", "Say", "Start", "Stop", "done_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the nodes have agreed on by being started alike.

    Attributes:
        min_nodes: least number of nodes of a round.
        max_nodes: greatest number.
        max_restarts: how many rounds may fail before the run has failed.
        join_timeout_s: how long to gather.
        others_may_host: another node may hold the rendezvous too, so that two parts of a cut network could go on.
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
        status: "ended": all well; "failed"; "again": saved and ended because they were asked to; "stopped": by us.
        rank: global rank of the failure.
        headline: what happened to it.
        text: the whole report.
        exitcode: what the launch should exit with.
        suspicion: as `RankEnd.suspicion`: 0 is a cause, 2 a consequence.
        failed_s: when, on the coordinator's clock.
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
    """A node that takes part or waits to.

    Attributes:
        key: unique in the run; later ones are greater.
        name: host name.
        address: where other nodes reach it.
        num_ranks: ranks that it starts.
        wish: the node rank that it asked for.
        home: it holds the rendezvous: the first among those that come together.
        port: that it holds for rank 0; None while its ranks run.
        seat: its node rank in the newest round; None before its first.
        first_rank: the global rank of its first rank there.
        done: how its ranks ended in this round.
        joined_s: when it came.
        veteran: it was in the last round of a rendezvous that fell silent: those decide who goes on.
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
    """End the ranks of the round; in peace: let them save."""

    in_peace: bool
    keys: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Tell a failure: the report where it happened and at the rendezvous, one line elsewhere."""

    key: int
    line: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Nodes were lost, and the run goes on: it is kept in the run's directory; first rank of the first of them."""

    line: str
    rank: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """Say something on all nodes."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The run is over.

    Attributes:
        exitcode: of the failure; 0 without one.
        again: the ranks have saved, the same command goes on.
        signal: that came from outside.
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
    """Read a node's report; what is missing or of another kind is taken as nothing."""
    age = message.get("age_s")
    texts = {name: str(message.get(name, "")) for name in ("status", "headline", "text")}
    numbers = {name: int(message.get(name) or 0) for name in ("rank", "exitcode", "suspicion")}
    return Done(**texts, **numbers, failed_s=now - float(age or 0.0))  # type: ignore[arg-type]
