"""Hangs and stalls of several nodes: when one node's ranks stand still, ask all nodes and decide once for all.

One node alone cannot decide: if its ranks wait for a rank of another node, none of its own ranks is the culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankwise.launch.elastic.server import RemoteNode, Server
from rankwise.launch.failures.culprit import choose
from rankwise.launch.failures.observation import Sighting, describe_sightings, sighting_from
from rankwise.launch.failures.verdict import Failure
from rankwise.vitals.stacks import tidy

if TYPE_CHECKING:
    from rankwise.launch.local.attempt import Attempt

__all__ = ["INQUIRY_KINDS", "HangDetector", "Inquiry", "Verdict", "inquiry_from", "obey_inquiry", "view_from"]

INQUIRY_KINDS = {"look", "standstill", "hung"}  # messages for `obey_inquiry`
_PATIENCE_S = 15.0  # how long to wait for the answers of all nodes


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
class Verdict:
    """What the views of all nodes show.

    Attributes:
        key: the node of the rank that blocks the others; without one, the node that asked if it waits for an answer.
        failure: the failure of this rank; None: there is none, because ranks advance, none could be examined, or the
            attempt goes on.
        line: one line about a standstill that does not end the attempt, "" if there is none.
        text: the same, and where all ranks are.
    """

    key: int | None
    failure: dict[str, Any] | None = None
    line: str = ""
    text: str = ""


@dataclass(kw_only=True, slots=True)
class Inquiry:
    """A question to all nodes with running ranks.

    Attributes:
        key: key of the node that asked.
        final: whether a culprit ends the attempt.
        limit_s: how long its ranks have stood still; 0: decide even if other nodes advance.
        reason: why its ranks count as hung.
        begun_s: when it asked.
        views: the views received so far, by node.
    """

    key: int
    final: bool
    limit_s: float
    reason: str
    begun_s: float
    views: dict[int, View] = field(default_factory=dict)

    def conclude(self, nodes: Mapping[int, str], now: float) -> Verdict | None:
        """Return the verdict; None while answers are missing.

        Args:
            nodes: names of the nodes with running ranks, by key.
            now: current time, monotonic clock.
        """
        silent = [name for key, name in nodes.items() if key not in self.views]
        if silent and now < self.begun_s + _PATIENCE_S:
            return None
        if self.limit_s and any(
            view.found and view.quiet_s is not None and view.quiet_s < self.limit_s / 2 for view in self.views.values()
        ):
            return Verdict(key=self.key)  # ranks of another node advance
        homes = {seen.rank: key for key, view in self.views.items() for seen in view.found}
        found = sorted((seen for view in self.views.values() for seen in view.found), key=lambda seen: seen.rank)
        late = {rank: key for key, view in self.views.items() for rank in view.missing}
        aside = f"; node {', '.join(silent)} does not answer" if silent else ""
        if self.final:
            return self._blame(found, homes, late, aside)
        return self._standstill(found, homes, late, nodes, aside)

    def _blame(self, found: list[Sighting], homes: Mapping[int, int], late: Mapping[int, int], aside: str) -> Verdict:
        if late:
            rank = min(late)
            said = {"headline": f"hangs: {self.reason}; it never started{aside}", "detail": "", "waits": False}
            return Verdict(key=late[rank], failure={"rank": rank, "places": _places(found), **said})
        if not found:
            return Verdict(key=self.key)
        culprit, why = choose(found)
        headline = f"hangs ({culprit.where}): {'; '.join(filter(None, (self.reason, why)))}{aside}"
        said = {"headline": headline, "detail": tidy(culprit.stacks), "waits": culprit.waits > 0}
        return Verdict(key=homes[culprit.rank], failure={"rank": culprit.rank, "places": _places(found), **said})

    def _standstill(
        self,
        found: list[Sighting],
        homes: Mapping[int, int],
        late: Collection[int],
        nodes: Mapping[int, str],
        aside: str,
    ) -> Verdict:
        line, key = f"no rank has advanced for {self.limit_s:.0f} s (--stall), the run continues", None
        if found:
            culprit, why = choose(found)
            key = homes[culprit.rank]
            line += f"; look at rank {culprit.rank} on node {nodes.get(key, '?')}{': ' + why if why else ''}"
        line += aside
        return Verdict(key=key, line=line, text=describe_sightings(line, found, sorted(late)))


def _places(found: list[Sighting]) -> dict[str, str]:
    return {str(seen.rank): seen.where for seen in found}


def inquiry_from(key: int, question: Mapping[str, Any], now: float) -> Inquiry:
    """Read a node's question, which holds its own view; raises as `view_from` does."""
    return Inquiry(
        key=key,
        final=bool(question["final"]),
        limit_s=float(question["limit_s"]),
        reason=str(question["reason"]),
        begun_s=now,
        views={key: view_from(question)},
    )


class HangDetector:
    """Receives the questions of nodes whose ranks stand still, asks the other nodes, and sends the verdict.

    Args:
        server: the connections to the nodes.
        at_work: returns the names of the nodes with running ranks, by key; {} when the ranks are being ended.
    """

    def __init__(self, server: Server, at_work: Callable[[], Mapping[int, str]]) -> None:
        self._server, self._at_work = server, at_work
        self._inquiry: Inquiry | None = None
        self._number = 0

    def ask(self, node: RemoteNode, question: Mapping[str, Any], now: float) -> float:
        """Ask all nodes with running ranks, if they are not asked yet.

        Returns:
            Until when the round must go on, so that the answers can arrive and name a culprit; 0.0: there is no need.
        """
        inquiry, until_s = inquiry_from(node.key, question, now), 0.0
        if self._inquiry is not None and (self._inquiry.final or not inquiry.final):
            self._inquiry.views |= inquiry.views
        elif node.key in self._at_work():
            self._inquiry, self._number = inquiry, self._number + 1
            until_s = now + _PATIENCE_S if inquiry.final else 0.0
            look = {"kind": "look", "inquiry": self._number, "final": inquiry.final}
            self._server.tell(look, [key for key in self._at_work() if key != node.key])
        self.conclude(now)
        return until_s

    def note_view(self, node: RemoteNode, message: Mapping[str, Any], now: float) -> None:
        """Note the answer of a node."""
        if self._inquiry is not None and message["inquiry"] == self._number:
            self._inquiry.views[node.key] = view_from(message)
            self.conclude(now)

    def forget(self) -> None:
        """Forget the question: its ranks have ended."""
        self._inquiry = None

    def conclude(self, now: float) -> None:
        """Send the verdict once all nodes' views have arrived."""
        inquiry, nodes = self._inquiry, self._at_work()
        if inquiry is None:
            return
        if not nodes:
            self._inquiry = None
            return
        verdict = inquiry.conclude(nodes, now)
        if verdict is None:
            return
        self._inquiry = None
        if inquiry.final:
            self._server.tell({"kind": "hung", "failure": verdict.failure}, [verdict.key])
        elif verdict.text:
            for node in self._server.members:
                whole = node.is_home or node.key == verdict.key
                node.connection.send({"kind": "standstill", "text": verdict.text if whole else verdict.line})


def obey_inquiry(
    message: Mapping[str, Any],
    attempt: Attempt | None,
    *,
    send: Callable[[Mapping[str, Any]], object],
    tell: Callable[[str], object],
) -> None:
    """Do on a node what a `HangDetector` demands.

    Args:
        message: its message.
        attempt: the attempt with the ranks here; None: none runs.
        send: sends a message back.
        tell: reports a standstill to the user.
    """
    if message["kind"] == "look":
        view: Mapping[str, Any] = {"quiet_s": None, "missing": [], "ranks": []}
        if attempt is not None:
            view = attempt.view(final=bool(message["final"]))
        send({"kind": "seen", "inquiry": message["inquiry"], **view})
    elif message["kind"] == "standstill":
        tell(str(message["text"]))
        if attempt is not None:
            attempt.note_standstill()
    elif attempt is not None:
        attempt.blame(_failure_from(message["failure"]))


def _failure_from(told: Mapping[str, Any] | None) -> Failure | None:
    """Return the failure in a `Verdict`; None if no culprit was found."""
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
