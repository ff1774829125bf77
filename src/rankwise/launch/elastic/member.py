"""A node as the rendezvous sees it, how its ranks ended, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Order(NamedTuple):
    """A message to nodes; `keys`: to which, None: to all."""

    message: dict[str, Any]
    keys: tuple[int, ...] | None = None


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
        address: its address on its connection to the rendezvous.
        host_address: the address of the rendezvous on the same connection.
        num_ranks: number of ranks that it starts.
        wanted_rank: the node rank that it asked for.
        home: whether it holds the rendezvous; it comes first among new nodes.
        port: port that it holds for rank 0; None while its ranks run.
        node_rank: its node rank in the newest round; None before its first.
        first_rank: global rank of its first rank in that round.
        done: how its ranks ended in this round.
        joined_s: when it joined.
        in_last_round: it was in the last round of a rendezvous that fell silent; the quorum counts such nodes.
    """

    key: int
    name: str
    address: str
    num_ranks: int
    host_address: str = ""
    wanted_rank: int | None = None
    home: bool = False
    port: int | None = None
    node_rank: int | None = None
    first_rank: int = 0
    done: Done | None = None
    joined_s: float = 0.0
    in_last_round: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def done_from(message: Mapping[str, Any], now: float) -> Done:
    """Read a node's report; missing fields get empty values."""
    age = message.get("age_s")
    texts = {name: str(message.get(name, "")) for name in ("status", "headline", "text")}
    numbers = {name: int(message.get(name) or 0) for name in ("rank", "exitcode", "suspicion")}
    return Done(**texts, **numbers, failed_s=now - float(age or 0.0))  # type: ignore[arg-type]
