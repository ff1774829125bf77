"""The rendezvous: accepts nodes, receives their messages, notices lost nodes, and sends the decisions to all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rankwise.launch.elastic.connection import ConnectionLost
from rankwise.launch.elastic.member import Member, Order, done_from
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.nodes import difference
from rankwise.launch.elastic.server import RemoteNode, Server
from rankwise.launch.elastic.split_brain import SplitBrain
from rankwise.launch.local.loop import Loop

_LINGER_S = 5.0


class Coordinator(Server):
    """Serves a membership on a listening socket, inside a supervisor's loop.

    `home` is the join message of this machine's own node, whose settings the other nodes must have too.
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
        super().__init__(listener, token, loop, say=say)
        self._membership, self._home = membership, home
        self._split_brain: SplitBrain | None = None
        self._moved_to = ""  # host of another rendezvous, to which all nodes go

    def close(self) -> None:
        """Close all connections; give nodes a few seconds to read their last message."""
        deadline = time.monotonic() + _LINGER_S
        while self.members and time.monotonic() < deadline:
            self._loop.step(0.05)
        if self._split_brain is not None:
            self._split_brain.close()
        super().close()

    def look_for_others(self, hosts: Mapping[str, Sequence[str]], host: str, port: int) -> None:
        """Look for a rendezvous on other hosts: after a network split the run may continue or start there too."""
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
        self.send_orders([Order({"kind": "moved", "host": host})])

    def obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        """Do what a node, or another rendezvous, demands."""
        now, kind, members, orders = time.monotonic(), message.get("kind"), self._membership, list[Order]()
        if kind == "join":
            orders = [] if node.is_member else self._join(node, message, now)
        elif kind == "probe" and not node.is_member:
            own = None if self._split_brain is None else self._split_brain.answer(message)
            if own is not None:
                node.send(own)
        elif kind == "ending":
            signal = message["signal"]
            orders = members.ending(node.key, None if signal is None else int(signal), now)
        elif kind == "done":
            orders = members.done(node.key, done_from(message, now), int(message["port"]), now)
        elif kind == "bye":
            raise ConnectionLost("it was asked to end")
        elif kind != "still" or int(message["round"]) == members.number - 1:
            super().obey(node, message)
            members.held_until_s = self._hangs.held_until_s
        self.send_orders(orders)

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
            wanted_rank=None if wish is None else int(wish),
            home=is_home,
            port=int(message["port"]),
            in_last_round=bool(message.get("quorum")),
        )
        members = self._membership
        members.number = max(members.number, int(message.get("round", 0)))
        if not members.round:  # else this rendezvous has the newest state, and a node that was cut off has an old one
            members.failures = max(members.failures, int(message.get("failures", 0)))
            members.quorum = max(members.quorum, int(message.get("quorum", 0)))
            members.run_id = str(message.get("run_id") or members.run_id)
        node.send({"kind": "welcome"})
        return members.join(member, now)

    def at_work(self) -> Mapping[int, str]:
        """Return the names of the nodes with running ranks, by key; {} when the ranks are being ended."""
        state = self._membership
        if state.phase != "running":
            return {}
        return {key: m.name for key, m in state.members.items() if key in state.round and m.done is None}

    def lose(self, node: RemoteNode, lost: ConnectionLost) -> None:
        """Decide how the run goes on without a node."""
        self.send_orders(self._membership.gone(node.key, str(lost), time.monotonic(), silent=lost.silent))

    def send_orders(self, orders: Iterable[Order]) -> None:
        """Send messages to members; the start of a round ends the question about the ranks of the one before."""
        for order in orders:
            if order.message["kind"] == "start":
                self._hangs.reset()
            super().send_orders([order])

    def tick(self) -> None:
        """Do what is due."""
        self.send_orders(self._membership.tick(time.monotonic()))
        super().tick()
