"""The rendezvous: accepts nodes, receives their messages, notices lost nodes, and sends the decisions to all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankwise.launch.elastic.connection import ConnectionLost
from rankwise.launch.elastic.hang import HangDetector
from rankwise.launch.elastic.member import Member, Order, done_from
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.nodes import difference
from rankwise.launch.elastic.server import RemoteNode, Server
from rankwise.launch.elastic.split_brain import SplitBrain
from rankwise.launch.local.loop import Loop

__all__ = ["Coordinator"]

_TICK_S = 0.25
_LINGER_S = 5.0


class Coordinator:
    """Serves a membership on a listening socket, inside a supervisor's loop.

    Args:
        listener: listening socket; this object owns it.
        membership: the membership of the run.
        token: the secret that every node must know.
        loop: the event loop.
        say: prints messages that concern this machine only.
        home: the join message of this machine's own node; other nodes must have the same settings.
    """

    def __init__(
        self,
        listener: socket.socket,
        membership: Membership,
        token: str,
        loop: Loop,
        *,
        say: Callable[[str], None],
        home: Mapping[str, Any],
    ) -> None:
        self._membership, self._token, self._loop, self._say = membership, token, loop, say
        self._server = Server(listener, token, loop, obey=self._obey, lost=self._lost, say=say)
        self._home = home
        self._split_brain: SplitBrain | None = None
        self._moved_to = ""  # host of another rendezvous, to which all nodes go
        self._hangs = HangDetector(membership.at_work)
        loop.every(_TICK_S, self._tick)

    def close(self) -> None:
        """Close all connections; give nodes a few seconds to read their last message."""
        deadline = time.monotonic() + _LINGER_S
        while self._server.members and time.monotonic() < deadline:
            self._loop.step(0.05)
        if self._split_brain is not None:
            self._split_brain.close()
        self._loop.forget_every(self._tick)
        self._server.close()

    def look_for_others(self, hosts: Mapping[str, Sequence[str]], host: str, port: int) -> None:
        """Look for a rendezvous on other hosts: after a network split the run may continue or start there too.

        Args:
            hosts: the hosts of the list, in its order, with their addresses.
            host: this host's name in the list.
            port: port of the rendezvous on all hosts.
        """
        self._split_brain = SplitBrain(
            hosts,
            host,
            port,
            self._token,
            self._loop,
            run=self._home["like"]["--rdzv-id"],
            membership=self._membership,
            moved=self._move,
        )

    def _move(self, host: str) -> None:
        """Send all nodes to the rendezvous of another host, which decides from now on."""
        self._moved_to, self._membership.phase = host, "over"
        self._server.tell([Order({"kind": "moved", "host": host})])

    def _obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        now, kind, members, orders = time.monotonic(), message.get("kind"), self._membership, list[Order]()
        if kind == "join" and not node.is_member:
            orders = self._join(node, message, now)
        elif kind == "probe" and not node.is_member:
            own = None if self._split_brain is None else self._split_brain.answer(message)
            if own is not None:
                node.send(own)
        elif kind == "ending":
            signal = message["signal"]
            orders = members.ending(node.key, None if signal is None else int(signal), now)
        elif kind == "done":
            orders = members.done(node.key, done_from(message, now), int(message["port"]), now)
        elif kind == "still" and int(message["round"]) == members.number - 1:
            orders = self._hangs.ask(node.key, message, now)
            members.held_until_s = self._hangs.held_until_s
        elif kind == "seen":
            orders = self._hangs.note_view(node.key, message, now)
        elif kind == "bye":
            raise ConnectionLost("it was asked to end")
        self._do(orders)

    def _join(self, node: RemoteNode, message: Mapping[str, Any], now: float) -> list[Order]:
        node.name = str(message["name"])
        is_home = message["id"] == self._home["id"]
        like = {str(name): str(value) for name, value in message["like"].items()}
        if self._moved_to:
            node.send({"kind": "moved", "host": self._moved_to})
            return []
        why = difference(self._home["name"], self._home["like"], node.name, like)
        if why or self._membership.phase == "over":
            self._say(f"refused node {node.name} ({node.addresses[1]}): {why or 'the run is over'}")
            node.send({"kind": "refused", "why": why or "the run is over"})
            return []
        node.is_member = True
        if is_home:
            self._hangs.home = node.key
        wish = message.get("wish")
        member = Member(
            key=node.key,
            name=node.name,
            address=node.addresses[1],
            host_address=node.addresses[0],
            num_ranks=int(message["num_ranks"]),
            wish=None if wish is None else int(wish),
            home=is_home,
            port=int(message["port"]),
            veteran=bool(message.get("quorum")),
        )
        members = self._membership
        members.number = max(members.number, int(message.get("round", 0)))
        if not members.round:  # else this rendezvous has the newest state, and a node that was cut off has an old one
            members.failures = max(members.failures, int(message.get("failures", 0)))
            members.quorum = max(members.quorum, int(message.get("quorum", 0)))
            members.run_id = str(message.get("run_id") or members.run_id)
        node.send({"kind": "welcome"})
        return members.join(member, now)

    def _tick(self) -> None:
        self._server.tick()
        self._do(self._membership.tick(time.monotonic()))
        self._server.tell(self._hangs.conclude(time.monotonic()))

    def _lost(self, node: RemoteNode, why: str, silent: bool) -> None:  # noqa: FBT001
        self._do(self._membership.gone(node.key, why, time.monotonic(), silent=silent))

    def _do(self, orders: list[Order]) -> None:
        for order in orders:
            if order.message["kind"] == "start":
                self._hangs.forget()
        self._server.tell(orders)
