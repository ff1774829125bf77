"""Which rank of all nodes blocks the others: when one node's ranks stand still, ask all nodes and decide once.

One node alone cannot decide: if its ranks wait for a rank of another node, none of its own ranks is the culprit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.launch.failures.observation import Sighting, choose, describe_sightings, sighting_from
from rankwise.launch.failures.verdict import Failure
from rankwise.vitals.stacks import tidy

__all__ = ["PATIENCE_S", "Blame", "Inquiry", "Nobody", "Standstill", "View", "failure_from", "view_from"]

PATIENCE_S = 15.0  # how long to wait for the answers of all nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A node's view of its running ranks.

    Attributes:
        quiet_s: seconds since one of them last advanced; None if unknown.
        found: a sighting of each rank.
        missing: ranks that have not begun.
    """

    quiet_s: float | None
    found: tuple[Sighting, ...]
    missing: tuple[int, ...]


def view_from(message: Mapping[str, Any]) -> View:
    """Read a node's view.

    Raises:
        KeyError: a field is missing.
        TypeError: a field has the wrong type.
        ValueError: a field has an invalid value.
    """
    quiet_s = message["quiet_s"]
    found = tuple(sighting_from(seen) for seen in message["ranks"])
    missing = tuple(int(rank) for rank in message["missing"])
    return View(quiet_s=None if quiet_s is None else float(quiet_s), found=found, missing=missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """Verdict: a rank is the culprit; holds its node and the failure."""

    key: int
    failure: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """Verdict: no rank advances; holds the suspect's node (or None), a line, and where all ranks are."""

    key: int | None
    line: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Nobody:
    """Verdict: no culprit, because other nodes advance, or no rank could be examined."""

    key: int


@dataclass(kw_only=True, slots=True)
class Inquiry:
    """A question to all nodes with running ranks.

    Attributes:
        key: key of the node that asked.
        round: the round in which it asked.
        final: whether a culprit ends the attempt.
        limit_s: how long its ranks have stood still; 0: decide even if other nodes advance.
        reason: why its ranks count as hung.
        begun_s: when it asked.
        views: the views received so far, by node.
    """

    key: int
    round: int
    final: bool
    limit_s: float
    reason: str
    begun_s: float
    views: dict[int, View] = field(default_factory=dict)

    def conclude(self, nodes: Mapping[int, str], now: float) -> Blame | Standstill | Nobody | None:
        """Return the verdict; None while answers are missing.

        Args:
            nodes: names of the nodes with running ranks, by key.
            now: current time, monotonic clock.
        """
        silent = [name for key, name in nodes.items() if key not in self.views]
        if silent and now < self.begun_s + PATIENCE_S:
            return None
        if self.limit_s and any(
            view.found and view.quiet_s is not None and view.quiet_s < self.limit_s / 2 for view in self.views.values()
        ):
            return Nobody(key=self.key)  # ranks of another node advance
        homes = {seen.rank: key for key, view in self.views.items() for seen in view.found}
        found = sorted((seen for view in self.views.values() for seen in view.found), key=lambda seen: seen.rank)
        late = {rank: key for key, view in self.views.items() for rank in view.missing}
        aside = f"; node {', '.join(silent)} does not answer" if silent else ""
        if self.final:
            return self._blame(found, homes, late, aside)
        return self._standstill(found, homes, late, nodes, aside)

    def _blame(
        self, found: list[Sighting], homes: Mapping[int, int], late: Mapping[int, int], aside: str
    ) -> Blame | Nobody:
        if late:
            rank = min(late)
            said = {"headline": f"hangs: {self.reason}; it never started{aside}", "detail": "", "waits": False}
            return Blame(key=late[rank], failure={"rank": rank, "places": _places(found), **said})
        if not found:
            return Nobody(key=self.key)
        culprit, why = choose(found)
        headline = f"hangs ({culprit.where}): {'; '.join(filter(None, (self.reason, why)))}{aside}"
        said = {"headline": headline, "detail": tidy(culprit.stacks), "waits": culprit.waits > 0}
        return Blame(key=homes[culprit.rank], failure={"rank": culprit.rank, "places": _places(found), **said})

    def _standstill(
        self,
        found: list[Sighting],
        homes: Mapping[int, int],
        late: Collection[int],
        nodes: Mapping[int, str],
        aside: str,
    ) -> Standstill:
        line, key = f"no rank has advanced for {self.limit_s:.0f} s (--stall), the run continues", None
        if found:
            culprit, why = choose(found)
            key = homes[culprit.rank]
            line += f"; look at rank {culprit.rank} on node {nodes.get(key, '?')}{': ' + why if why else ''}"
        line += aside
        return Standstill(key=key, line=line, text=describe_sightings(line, found, sorted(late)))


def _places(found: list[Sighting]) -> dict[str, str]:
    return {str(seen.rank): seen.where for seen in found}


def failure_from(told: Mapping[str, Any] | None) -> Failure | None:
    """Return the failure in a `Blame`; None if no culprit was found."""
    if told is None:
        return None
    return Failure(
        rank=int(told["rank"]),
        headline=str(told["headline"]),
        detail=str(told["detail"]),
        witness=int(told["rank"]),
        status=None,
        exitcode=1,
        places={int(rank): str(where) for rank, where in told["places"].items()},
        waits=bool(told["waits"]),
    )
