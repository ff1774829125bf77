"""A supervisor that listens: strangers until they have authenticated, then nodes that ask which rank blocks theirs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.elastic.membership import Order
from rankwise.launch.failures.culprit import blame, choose
from rankwise.launch.failures.observation import Observation, describe_observations, observation_from
from rankwise.launch.failures.verdict import Failure
from rankwise.launch.local.attempt import NO_VIEW, Attempt
from rankwise.launch.local.loop import Loop

INQUIRY_KINDS = {"look", "standstill", "hung"}  # messages for `obey_inquiry`
_PATIENCE_S = 15.0  # how long to wait for the answers of all nodes
_MAX_STRANGERS = 64  # connections that have not joined; beyond that the oldest is closed
_STRANGER_S = 5.0
_TICK_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A node's view of its running ranks.

    Attributes:
        quiet_s: seconds since one of them last advanced; None if unknown.
        found: an observation of each rank.
        missing: ranks that have not begun.
    """

    quiet_s: float | None
    found: tuple[Observation, ...]
    missing: tuple[int, ...]

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Self:
        """Read a node's message; KeyError, TypeError or ValueError: a field is missing or wrong."""
        quiet_s = message["quiet_s"]
        return cls(
            quiet_s=None if quiet_s is None else float(quiet_s),
            found=tuple(map(observation_from, message["ranks"])),
            missing=tuple(map(int, message["missing"])),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Inquiry:
    """A question to all nodes with running ranks.

    Attributes:
        key: key of the node that asked.
        final: whether a culprit ends the attempt.
        limit_s: how long its ranks have stood still; 0: decide even if other nodes advance.
        reason: why its ranks count as hung.
        until_s: when to decide without the answers that are missing.
        views: the views received so far, by node.
    """

    key: int
    final: bool
    limit_s: float
    reason: str
    until_s: float
    views: dict[int, View]


class HangDetector:
    """Takes the questions of nodes whose ranks stand still; returns messages to nodes: more questions, or the verdict.

    Args:
        at_work: returns the names of the nodes with running ranks, by key; {} when the ranks are being ended.

    Attributes:
        home: key of the node that reports all of a standstill, None while it is not connected.
        held_until_s: until when the round must go on, so that the answers can arrive and name a culprit.
    """

    def __init__(self, at_work: Callable[[], Mapping[int, str]]) -> None:
        self.home: int | None = None
        self.held_until_s = 0.0
        self._at_work = at_work
        self._inquiry: Inquiry | None = None
        self._number = 0

    def ask(self, key: int, question: Mapping[str, Any], now: float) -> list[Order]:
        """A node asks, and sends its own view: ask all nodes with running ranks, if they are not asked yet."""
        final, views, nodes = bool(question["final"]), {key: View.read(question)}, self._at_work()
        limit_s, reason, until_s = float(question["limit_s"]), str(question["reason"]), now + _PATIENCE_S
        orders = []
        if self._inquiry is not None and (self._inquiry.final or not final):
            self._inquiry.views.update(views)
        elif key in nodes:
            self._inquiry = Inquiry(key=key, final=final, limit_s=limit_s, reason=reason, until_s=until_s, views=views)
            self._number += 1
            if final:
                self.held_until_s = until_s
            look = {"kind": "look", "inquiry": self._number, "final": final}
            orders.append(Order(look, tuple(other for other in nodes if other != key)))
        return orders + self.conclude(now)

    def note_view(self, key: int, message: Mapping[str, Any], now: float) -> list[Order]:
        """A node answers."""
        if self._inquiry is None or message["inquiry"] != self._number:
            return []
        self._inquiry.views[key] = View.read(message)
        return self.conclude(now)

    def reset(self) -> None:
        """Forget the question: its ranks have ended."""
        self._inquiry, self.held_until_s = None, 0.0

    def conclude(self, now: float) -> list[Order]:
        """Decide once the views of all nodes have arrived, or time is up."""
        inquiry, nodes = self._inquiry, self._at_work()
        if inquiry is None:
            return []
        silent = [name for key, name in nodes.items() if key not in inquiry.views]
        if silent and now < inquiry.until_s:
            return []
        self._inquiry = None
        return self._verdict(inquiry, nodes, silent) if nodes else []

    def _verdict(self, inquiry: Inquiry, nodes: Mapping[int, str], silent: list[str]) -> list[Order]:
        """Tell the node of the rank that blocks the others: its failure, or about a standstill all nodes.

        Without a culprit, tell the node that asked, if it waits for an answer: ranks of another node advance, or none
        could be examined.
        """
        views = inquiry.views.values()
        moves = any(view.found and view.quiet_s is not None and view.quiet_s < inquiry.limit_s / 2 for view in views)
        homes = {rank: key for key, view in inquiry.views.items() for rank in view.missing}
        missing = sorted(homes)
        homes |= {seen.rank: key for key, view in inquiry.views.items() for seen in view.found}
        found = sorted((seen for view in views for seen in view.found), key=lambda seen: seen.rank)
        aside = f"; node {', '.join(silent)} does not answer" if silent else ""
        if inquiry.final:
            if moves or not homes:
                return [Order({"kind": "hung", "failure": None}, (inquiry.key,))]
            failure = asdict(blame(found, missing, inquiry.reason))
            failure["headline"] += aside
            return [Order({"kind": "hung", "failure": failure}, (homes[failure["rank"]],))]
        if moves:
            return []
        line, whole = f"no rank has advanced for {inquiry.limit_s:.0f} s (--stall), the run continues", {self.home}
        if found:
            culprit, why = choose(found)
            key = homes[culprit.rank]
            line += f"; look at rank {culprit.rank} on node {nodes.get(key, '?')}{': ' + why if why else ''}"
            whole.add(key)
        line += aside
        text = describe_observations(line, found, missing)
        return [
            Order({"kind": "standstill", "text": text}, tuple(key for key in whole if key is not None)),
            Order({"kind": "standstill", "text": line}, tuple(key for key in nodes if key not in whole)),
        ]


def obey_inquiry(
    message: Mapping[str, Any],
    attempt: Attempt | None,
    *,
    send: Callable[[Mapping[str, Any]], object],
    tell: Callable[[str], object],
) -> None:
    """Do on a node what a `HangDetector` demands."""
    if message["kind"] == "look":
        view = NO_VIEW if attempt is None else attempt.view(final=bool(message["final"]))
        send({"kind": "seen", "inquiry": message["inquiry"], **view})
    elif message["kind"] == "standstill":
        tell(message["text"])
        if attempt is not None:
            attempt.note_standstill()
    elif attempt is not None:
        told = message["failure"]
        if told is not None:  # JSON has made texts of the ranks
            told = Failure(**{**told, "places": {int(rank): where for rank, where in told["places"].items()}})
        attempt.blame(told)


class RemoteNode(Connection):
    """The server's side of a connection: to a stranger until it has joined, then to a node.

    Attributes:
        key: unique; nodes that connect later have greater keys.
        name: host name.
        is_member: whether it has joined.
    """

    def __init__(
        self,
        key: int,
        connected: socket.socket,
        token: str,
        loop: Loop,
        *,
        obey: Callable[[RemoteNode, Mapping[str, Any]], None],
        ended: Callable[[RemoteNode, ConnectionLost], None],
    ) -> None:
        self.key, self.name, self.is_member = key, "", False
        super().__init__(connected, token, loop, obey=partial(obey, self), ended=partial(ended, self))


class Server:
    """Accepts nodes, and decides for all of them which rank blocks the others.

    It owns the listening socket; `say` prints messages that concern this machine only.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        loop: Loop,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.port = int(listener.getsockname()[1])
        self._nodes: list[RemoteNode] = []  # `tick` removes those that are lost
        self._listener, self._token, self._loop, self._say = listener, token, loop, say
        self._hangs = HangDetector(self.at_work)
        self._next_key = 0
        self._refused: set[str] = set()  # addresses already reported as having another token
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)
        loop.every(_TICK_S, self.tick)

    def obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        """Do what a node demands; ConnectionLost, ValueError, TypeError and KeyError close the connection."""
        kind, now = message.get("kind"), time.monotonic()
        if kind == "join":
            node.name, node.is_member = str(message["name"]), True
            if message["home"]:
                self._hangs.home = node.key
            node.send({"kind": "welcome"})
        elif kind == "still" and node.is_member:
            self.send_orders(self._hangs.ask(node.key, message, now))
        elif kind == "seen":
            self.send_orders(self._hangs.note_view(node.key, message, now))

    def at_work(self) -> Mapping[int, str]:
        """Return the names of the nodes with running ranks, by key; {} when the ranks are being ended."""
        return {node.key: node.name for node in self.members}

    def lose(self, node: RemoteNode, lost: ConnectionLost) -> None:
        """Act on the loss of a member."""

    @property
    def members(self) -> list[RemoteNode]:
        """The connected nodes that were accepted as members."""
        return [node for node in self._nodes if node.is_member and not node.lost]

    def close(self) -> None:
        """Stop listening and close all connections; a second call does nothing."""
        self._loop.remove_timer(self.tick)
        if self._listener.fileno() >= 0:
            self._loop.remove(self._listener.fileno())
            self._listener.close()
        for node in self._nodes:
            node.close()

    def send_orders(self, orders: Iterable[Order]) -> None:
        """Send messages to members."""
        for message, keys in orders:
            for node in self.members:
                if keys is None or node.key in keys:
                    node.send(message)

    def tick(self) -> None:
        """Drop strangers that do not join, lose silent members, send heartbeats, and decide what is due."""
        for node in self._nodes:
            if node.is_member and not node.lost:
                node.tick()
            elif time.monotonic() > node.begun_s + _STRANGER_S:
                node.close()
        self._nodes = [node for node in self._nodes if not node.lost]
        self.send_orders(self._hangs.conclude(time.monotonic()))

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # the client is gone, or no descriptors are left: the next tick drops strangers and frees some
        strangers = [node for node in self._nodes if not node.is_member and not node.lost]
        if len(strangers) >= _MAX_STRANGERS:
            strangers[0].close()
        node = RemoteNode(self._next_key, connected, self._token, self._loop, obey=self._receive, ended=self._end)
        self._next_key += 1
        self._nodes.append(node)

    def _receive(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        try:
            self.obey(node, message)
        except (KeyError, TypeError, ValueError) as error:
            raise ConnectionLost(f"it sent an invalid message ({type(error).__name__}: {error})") from error

    def _end(self, node: RemoteNode, lost: ConnectionLost) -> None:
        address, known = node.addresses[1], self._refused
        if isinstance(lost, NotAuthenticated) and lost.greeted and address not in known and len(known) < _MAX_STRANGERS:
            known.add(address)
            self._say(f"refused a node at {address}: it has a different token")
        if node.is_member:
            self.lose(node, lost)
