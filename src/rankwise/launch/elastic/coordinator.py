"""The rendezvous: accepts nodes, receives their messages, notices lost nodes, and sends the decisions to all.

After a network split there may be several of one run: they look for each other, and the nodes of one join another.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rankwise._process.addresses import family_of
from rankwise.launch.elastic.connection import Client, ConnectionLost
from rankwise.launch.elastic.membership import Member, Membership, Order, done_from
from rankwise.launch.elastic.nodes import difference
from rankwise.launch.elastic.server import RemoteNode, Server
from rankwise.launch.local.loop import Loop

_AGAIN_S = 2.0
_ANSWER_S = 5.0
_LINGER_S = 5.0


class Priority(NamedTuple):
    """Ranks two rendezvous of one run, compared field by field; the greater one stays.

    Attributes:
        at_work: number of nodes with running ranks.
        number: number of its next round; a greater one has seen more of the run.
        place: position of its host in the list, negated: 0 for the first, -1 for the next; unique.
        host: its host's name in the list.
        id: id of the rendezvous, so that one that finds itself under another host name ignores that.
    """

    at_work: int
    number: int
    place: int
    host: str
    id: str


class SplitBrain:
    """Asks the other hosts of the list every other second whether they hold a rendezvous of this run, and answers them.

    It never blocks: it opens and closes connections inside the supervisor's loop.

    `hosts` are those of the list, in its order, with their addresses; those without any are skipped. `moved` is called
    once, with the host of a rendezvous that ranks higher.
    """

    def __init__(
        self,
        hosts: Mapping[str, Sequence[str]],
        host: str,
        port: int,
        token: str,
        loop: Loop,
        *,
        run: str,
        membership: Membership,
        moved: Callable[[str], object],
    ) -> None:
        self._others = {name: list(addresses) for name, addresses in hosts.items() if name != host and addresses}
        self._host, self._place, self._port, self._token, self._loop = host, -list(hosts).index(host), port, token, loop
        self._run, self._membership, self._moved = run, membership, moved
        self._id = secrets.token_hex(8)
        self._asked: dict[str, Client] = {}
        loop.every(_AGAIN_S, self._ask_all)

    def close(self) -> None:
        """Stop looking."""
        self._loop.remove_timer(self._ask_all)
        for client in self._asked.values():
            client.close()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Compare with a rendezvous that asks; return the answer, None if it gets none."""
        if message.get("run") != self._run or self._membership.phase == "over":
            return None
        own = self._priority()
        self._compare(message)
        return {"kind": "priority", "priority": own}

    def _priority(self) -> Priority:
        members = self._membership
        at_work = len(members.round) if members.phase in {"running", "stopping"} else 0
        return Priority(at_work=at_work, number=members.number, place=self._place, host=self._host, id=self._id)

    def _compare(self, message: Mapping[str, Any]) -> None:
        """Compare with another rendezvous of this run: if the other one ranks higher, all nodes go there."""
        other = Priority(*message["priority"])
        if other.id != self._id and other > self._priority() and self._membership.phase != "over":
            self._moved(other.host)

    def _ask_all(self) -> None:
        now = time.monotonic()
        for name, client in list(self._asked.items()):
            if now > client.begun_s + _ANSWER_S:
                self._drop(name)
        for name, addresses in self._others.items():
            if name not in self._asked:
                address = addresses.pop(0)
                addresses.append(address)
                connecting = socket.socket(family_of(address), socket.SOCK_STREAM)
                connecting.setblocking(False)  # noqa: FBT003
                connecting.connect_ex((address, self._port))  # reading shows the result: a rendezvous sends first
                self._asked[name] = Client(
                    connecting,
                    name,
                    self._token,
                    self._loop,
                    lambda: {"kind": "probe", "run": self._run, "priority": self._priority()},
                    obey=partial(self._receive, name),
                    ended=partial(self._drop, name),
                )

    def _receive(self, name: str, message: Mapping[str, Any]) -> None:
        self._drop(name)
        if message.get("kind") == "priority":
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._compare(message)

    def _drop(self, name: str) -> None:
        self._asked.pop(name).close()


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
