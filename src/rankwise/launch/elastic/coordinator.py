"""The rendezvous: accepts nodes, receives their messages, notices lost nodes, and sends the decisions to all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankwise.launch.elastic.decisions import Action, Cause, End, Lost, Member, Say, Start, Stop, done_from
from rankwise.launch.elastic.hang import PATIENCE_S, Blame, Inquiry, Standstill, view_from
from rankwise.launch.elastic.interfaces import is_loopback
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
        run_id: the same for all rounds; a run that continues after a lost rendezvous keeps its id.
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
        run_id: str,
    ) -> None:
        self._membership, self._token, self._loop, self._say = membership, token, loop, say
        self._server = Server(listener, token, loop, obey=self._obey, lost=self._lost, say=say)
        self._run_id, self._home = run_id, home
        self._begun_s = time.monotonic()
        self._split_brain: SplitBrain | None = None
        self._inquiry: Inquiry | None = None
        self._num_inquiries = 0
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
            moved=lambda name: self._server.tell({"kind": "moved", "host": name}),
        )

    @property
    def _moved_to(self) -> str:
        return "" if self._split_brain is None else self._split_brain.moved_to

    def _obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        now, kind, members = time.monotonic(), message.get("kind"), self._membership
        if kind == "join" and not node.is_member:
            self._join(node, message, now)
        elif kind == "probe" and not node.is_member:
            own = None if self._split_brain is None else self._split_brain.answer(message)
            if own is not None:
                node.connection.send(own)
        elif kind == "failing":
            self._do(members.failing(node.key, now))
        elif kind == "leaving":
            self._do(members.leaving(node.key, int(message["signal"]), now))
        elif kind == "done":
            self._do(members.done(node.key, done_from(message, now), int(message["port"]), now))
        elif kind == "still":
            self._inquire(node, message, now)
        elif kind == "seen":
            self._hear_view(node, message, now)
        elif kind == "bye":
            self._server.lose(node, "it was asked to end", silent=False)

    def _inquire(self, node: RemoteNode, message: Mapping[str, Any], now: float) -> None:
        """Handle a question from a node whose ranks stand still: ask all nodes with running ranks, if not yet asked."""
        view, members = view_from(message), self._membership
        if members.phase != "running" or int(message["round"]) != members.number - 1:
            return
        if self._inquiry is not None and (self._inquiry.final or not message["final"]):
            self._inquiry.views[node.key] = view
        elif node.key in members.at_work():
            self._num_inquiries += 1
            final = bool(message["final"])
            if final:
                members.hold(now + PATIENCE_S)
            self._inquiry = Inquiry(
                key=node.key,
                round=members.number - 1,
                final=final,
                limit_s=float(message["limit_s"]),
                reason=str(message["reason"]),
                begun_s=now,
                views={node.key: view},
            )
            for key in members.at_work():
                if key != node.key:
                    look = {"kind": "look", "inquiry": self._num_inquiries, "final": final}
                    self._server.by_key[key].connection.send(look)
        self._conclude(now)

    def _hear_view(self, node: RemoteNode, message: Mapping[str, Any], now: float) -> None:
        if self._inquiry is not None and message["inquiry"] == self._num_inquiries:
            self._inquiry.views[node.key] = view_from(message)
            self._conclude(now)

    def _conclude(self, now: float) -> None:
        """Send the verdict once all nodes' views have arrived."""
        inquiry, members = self._inquiry, self._membership
        if inquiry is None:
            return
        if members.phase != "running" or members.number - 1 != inquiry.round:
            self._inquiry = None
            return
        found = inquiry.conclude(members.at_work(), now)
        if found is None:
            return
        self._inquiry = None
        if isinstance(found, Standstill):
            for node in self._server.by_key.values():
                if node.is_member:
                    whole = node.is_home or node.key == found.key
                    node.connection.send({"kind": "standstill", "text": found.text if whole else found.line})
        elif found.key in self._server.by_key and (inquiry.final or isinstance(found, Blame)):
            failure = found.failure if isinstance(found, Blame) else None
            self._server.by_key[found.key].connection.send({"kind": "hung", "failure": failure})

    def _join(self, node: RemoteNode, message: Mapping[str, Any], now: float) -> None:
        node.name = str(message["name"])
        node.is_home = message["id"] == self._home["id"]
        like = {str(name): str(value) for name, value in message["like"].items()}
        if self._moved_to:
            node.connection.send({"kind": "moved", "host": self._moved_to})
            return
        why = difference(self._home["name"], self._home["like"], node.name, like)
        if why or self._membership.phase == "over":
            self._say(f"refused node {node.name} ({node.connection.addresses[1]}): {why or 'the run is over'}")
            node.connection.send({"kind": "refused", "why": why or "the run is over"})
            return
        node.is_member = True
        wish = message.get("wish")
        member = Member(
            key=node.key,
            name=node.name,
            address=node.connection.addresses[1],
            num_ranks=int(message["num_ranks"]),
            wish=None if wish is None else int(wish),
            home=node.is_home,
            port=int(message["port"]),
            veteran=bool(message.get("quorum")),
        )
        members = self._membership
        members.number = max(members.number, int(message.get("round", 0)))
        if not members.round:  # else this rendezvous has the newest state, and a node that was cut off has an old one
            members.failures = max(members.failures, int(message.get("failures", 0)))
            members.quorum = max(members.quorum, int(message.get("quorum", 0)))
            self._run_id = str(message.get("run_id") or self._run_id)
        node.connection.send({"kind": "welcome"})
        self._do(members.join(member, now))

    def _tick(self) -> None:
        now = time.monotonic()
        self._server.tick(now)
        self._do(self._membership.tick(now))
        self._conclude(now)

    def _do(self, actions: list[Action]) -> None:
        if self._moved_to:
            return  # the other rendezvous decides
        for action in actions:
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Stop):
                stopped = [self._server.by_key[key] for key in action.keys if key in self._server.by_key]
                self._server.tell({"kind": "stop", "in_peace": action.in_peace}, stopped)
            elif isinstance(action, Say):
                self._server.tell({"kind": "say", "text": action.text})
            elif isinstance(action, Cause):
                self._tell_cause(action)
            elif isinstance(action, Lost):
                home = [node for node in self._server.by_key.values() if node.is_home]
                self._server.tell({"kind": "lost", "line": action.line, "rank": action.rank}, home)
            elif isinstance(action, End):
                names = ("exitcode", "again", "signal", "line", "rank")
                self._server.tell({"kind": "end", **{name: getattr(action, name) for name in names}})

    def _start(self, start: Start) -> None:
        first = start.members[0]
        base = {
            "kind": "start",
            "run_id": self._run_id,
            "round": start.number,
            "failures": self._membership.failures,
            "num_nodes": len(start.members),
            "world_size": sum(member.num_ranks for member in start.members),
            "master_addr": self._reachable(first),
            "master_port": first.port,
            "elapsed_s": time.monotonic() - self._begun_s,
        }
        for member in start.members:
            member.port = None
            if member.key in self._server.by_key:
                part = {"node_rank": member.seat, "first_rank": member.first_rank}
                self._server.by_key[member.key].connection.send(base | part)

    def _reachable(self, member: Member) -> str:
        """Return the address at which other nodes reach a node; this machine's node may have joined over loopback."""
        if is_loopback(member.address):
            for node in self._server.by_key.values():
                ours, theirs = node.connection.addresses
                if node.is_member and not is_loopback(theirs):
                    return ours
        return member.address

    def _lost(self, node: RemoteNode, why: str, silent: bool) -> None:  # noqa: FBT001
        self._do(self._membership.gone(node.key, why, time.monotonic(), silent=silent))

    def _tell_cause(self, cause: Cause) -> None:
        """Send a failure: the whole report to the node of the rendezvous, one line to the others."""
        for node in self._server.members:
            text = cause.text if node.is_home and node.key != cause.key else ""
            own = node.key == cause.key
            node.connection.send({"kind": "cause", "line": cause.line, "text": text, "own": own})
