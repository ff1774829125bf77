"""Who of all nodes' ranks holds the others up: asked when one node's stand still, answered by all, decided once.

One node alone cannot tell: where its ranks wait for a rank of another node, none of its own is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankwise.launch.observation import Sighting, choose, describe_sightings, sighting_from
from rankwise.launch.verdict import Failure
from rankwise.vitals.stacks import tidy

__all__ = ["PATIENCE_S", "Blame", "Inquiry", "Nobody", "Standstill", "View", "failure_from", "view_from"]

PATIENCE_S = 15.0  # for the answers of all nodes, each of which looks at its ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What a node sees of its ranks that run.

    Attributes:
        quiet_s: seconds since one of them has advanced; None if that cannot be told.
        found: what each of them says and shows.
        missing: those that have not begun.
    """

    quiet_s: float | None
    found: tuple[Sighting, ...]
    missing: tuple[int, ...]


def view_from(message: Mapping[str, Any]) -> View:
    """Read a node's view.

    Raises:
        KeyError: a part is missing.
        TypeError: a part is of another kind.
        ValueError: a part is of another kind.
    """
    quiet_s = message["quiet_s"]
    found = tuple(sighting_from(seen) for seen in message["ranks"])
    missing = tuple(int(rank) for rank in message["missing"])
    return View(quiet_s=None if quiet_s is None else float(quiet_s), found=found, missing=missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """A rank is to blame: its node, and what the launch says of it."""

    key: int
    failure: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """Nobody advances: the node of the rank to look at, None without one, a line, and where all ranks are."""

    key: int | None
    line: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Nobody:
    """There is nobody to blame: others advance, or none of the ranks can be seen."""

    key: int


@dataclass(kw_only=True, slots=True)
class Inquiry:
    """A question to all nodes at work.

    Attributes:
        key: of the node that asked.
        round: in which.
        final: the attempt ends if a rank is found.
        limit_s: for how long its ranks have stood still; 0: whatever the others' do.
        reason: why they count as hung.
        begun_s: when it was asked.
        views: by node, as they come.
    """

    key: int
    round: int
    final: bool
    limit_s: float
    reason: str
    begun_s: float
    views: dict[int, View] = field(default_factory=dict)

    def conclude(self, nodes: Mapping[int, str], now: float) -> Blame | Standstill | Nobody | None:
        """Return what follows; None while answers are awaited.

        Args:
            nodes: names of those whose ranks run, by key.
            now: the time.
        """
        silent = [name for key, name in nodes.items() if key not in self.views]
        if silent and now < self.begun_s + PATIENCE_S:
            return None
        if self.limit_s and any(
            view.found and view.quiet_s is not None and view.quiet_s < self.limit_s / 2 for view in self.views.values()
        ):
            return Nobody(key=self.key)  # they advance: it is not all that stand still
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
            said = {"headline": f"hangs: {self.reason}; it never began{aside}", "detail": "", "waits": False}
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
        line, key = f"no rank has advanced for {self.limit_s:.0f} s (--stall), the run goes on", None
        if found:
            culprit, why = choose(found)
            key = homes[culprit.rank]
            line += f"; look at rank {culprit.rank} on node {nodes.get(key, '?')}{': ' + why if why else ''}"
        line += aside
        return Standstill(key=key, line=line, text=describe_sightings(line, found, sorted(late)))


def _places(found: list[Sighting]) -> dict[str, str]:
    return {str(seen.rank): seen.where for seen in found}


def failure_from(told: Mapping[str, Any] | None) -> Failure | None:
    """Return the failure of a rank that holds up those of all nodes, as a `Blame` has it; None: nobody was found."""
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
