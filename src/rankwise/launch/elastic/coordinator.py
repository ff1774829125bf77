"""The rendezvous: accepts nodes, receives their messages, notices lost nodes, and sends the decisions to all."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rankwise.launch.elastic.decisions import Action, Cause, End, Lost, Member, Say, Start, Stop, done_from
from rankwise.launch.elastic.guests import Guest, Guests
from rankwise.launch.elastic.inquiry import PATIENCE_S, Blame, Inquiry, Standstill, view_from
from rankwise.launch.elastic.interfaces import is_loopback
from rankwise.launch.elastic.lookback import LookBack, Standing, standing_from
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.nodes import difference
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
        self._guests = Guests(listener, token, loop, obey=self._obey, lost=self._lost, say=say)
        self._run_id, self._home = run_id, home
        self._begun_s = time.monotonic()
        self._id, self._host, self._place, self._moved_to = secrets.token_hex(8), "", 0, ""
        self._look_back: LookBack | None = None
        self._inquiry: Inquiry | None = None
        self._num_inquiries = 0
        loop.every(_TICK_S, self._tick)

    def close(self) -> None:
        """Close all connections; give nodes a few seconds to read their last message."""
        deadline = time.monotonic() + _LINGER_S
        while self._guests.members and time.monotonic() < deadline:
            self._loop.step(0.05)
        if self._look_back is not None:
            self._look_back.close()
        self._loop.forget_every(self._tick)
        self._guests.close()

    def look_back(self, hosts: Mapping[str, Sequence[str]], host: str, port: int) -> None:
        """Look for a rendezvous on other hosts: after a network split the run may continue or start there too.

        Args:
            hosts: the hosts of the list, in its order, with their addresses.
            host: this host's name in the list.
            port: port of the rendezvous on all hosts.
        """
        self._host, self._place = host, -list(hosts).index(host)
        others = [addresses for name, addresses in hosts.items() if name != host]
        self._look_back = LookBack(
            others, port, self._token, self._loop, question=lambda: self._standing("probe"), found=self._compare
        )

    def _standing(self, kind: str) -> dict[str, Any]:
        members = self._membership
        at_work = len(members.round) if members.phase in {"running", "stopping"} else 0
        own = Standing(at_work=at_work, number=members.number, place=self._place, host=self._host, id=self._id)
        return {"kind": kind, "run": self._home["like"]["--rdzv-id"], **asdict(own)}

    def _compare(self, other: Standing) -> None:
        """Compare with another rendezvous of this run: if the other one ranks higher, send all nodes there."""
        own = standing_from(self._standing(""))
        if other.id != self._id and other > own and not self._moved_to and self._membership.phase != "over":
            self._moved_to = other.host
            self._guests.tell({"kind": "moved", "host": other.host})

    def _answer(self, guest: Guest, message: Mapping[str, Any]) -> None:
        other = standing_from(message)
        if message.get("run") == self._home["like"]["--rdzv-id"] and self._look_back is not None and not self._moved_to:
            if self._membership.phase != "over":
                self._guests.send(guest, self._standing("standing"))
            self._compare(other)

    def _obey(self, guest: Guest, message: Mapping[str, Any]) -> None:
        now, kind, members = time.monotonic(), message.get("kind"), self._membership
        if kind == "join" and not guest.is_member:
            self._join(guest, message, now)
        elif kind == "probe" and not guest.is_member:
            self._answer(guest, message)
        elif kind == "failing":
            self._do(members.failing(guest.key, now))
        elif kind == "leaving":
            self._do(members.leaving(guest.key, int(message["signal"]), now))
        elif kind == "done":
            self._do(members.done(guest.key, done_from(message, now), int(message["port"]), now))
        elif kind == "still":
            self._inquire(guest, message, now)
        elif kind == "seen":
            self._hear_view(guest, message, now)
        elif kind == "bye":
            self._guests.lose(guest, "it was asked to end", silent=False)

    def _inquire(self, guest: Guest, message: Mapping[str, Any], now: float) -> None:
        """Handle a question from a node whose ranks stand still: ask all nodes with running ranks, if not yet asked."""
        view, members = view_from(message), self._membership
        if members.phase != "running" or int(message["round"]) != members.number - 1:
            return
        if self._inquiry is not None and (self._inquiry.final or not message["final"]):
            self._inquiry.views[guest.key] = view
        elif guest.key in members.at_work():
            self._num_inquiries += 1
            final = bool(message["final"])
            if final:
                members.hold(now + PATIENCE_S)
            self._inquiry = Inquiry(
                key=guest.key,
                round=members.number - 1,
                final=final,
                limit_s=float(message["limit_s"]),
                reason=str(message["reason"]),
                begun_s=now,
                views={guest.key: view},
            )
            for key in members.at_work():
                if key != guest.key:
                    look = {"kind": "look", "inquiry": self._num_inquiries, "final": final}
                    self._guests.send(self._guests.by_key[key], look)
        self._conclude(now)

    def _hear_view(self, guest: Guest, message: Mapping[str, Any], now: float) -> None:
        if self._inquiry is not None and message["inquiry"] == self._num_inquiries:
            self._inquiry.views[guest.key] = view_from(message)
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
            for guest in self._guests.by_key.values():
                if guest.is_member:
                    whole = guest.is_home or guest.key == found.key
                    self._guests.send(guest, {"kind": "standstill", "text": found.text if whole else found.line})
        elif found.key in self._guests.by_key and (inquiry.final or isinstance(found, Blame)):
            failure = found.failure if isinstance(found, Blame) else None
            self._guests.send(self._guests.by_key[found.key], {"kind": "hung", "failure": failure})

    def _join(self, guest: Guest, message: Mapping[str, Any], now: float) -> None:
        guest.name = str(message["name"])
        guest.is_home = message["id"] == self._home["id"]
        like = {str(name): str(value) for name, value in message["like"].items()}
        if self._moved_to:
            self._guests.send(guest, {"kind": "moved", "host": self._moved_to})
            return
        why = difference(self._home["name"], self._home["like"], guest.name, like)
        if why or self._membership.phase == "over":
            self._say(f"refused node {guest.name} ({guest.peer.addresses[1]}): {why or 'the run is over'}")
            self._guests.send(guest, {"kind": "refused", "why": why or "the run is over"})
            return
        guest.is_member = True
        wish = message.get("wish")
        member = Member(
            key=guest.key,
            name=guest.name,
            address=guest.peer.addresses[1],
            num_ranks=int(message["num_ranks"]),
            wish=None if wish is None else int(wish),
            home=guest.is_home,
            port=int(message["port"]),
            veteran=bool(message.get("quorum")),
        )
        members = self._membership
        members.number = max(members.number, int(message.get("round", 0)))
        if not members.round:  # else this rendezvous has the newest state, and a node that was cut off has an old one
            members.failures = max(members.failures, int(message.get("failures", 0)))
            members.quorum = max(members.quorum, int(message.get("quorum", 0)))
            self._run_id = str(message.get("run_id") or self._run_id)
        self._guests.send(guest, {"kind": "welcome"})
        self._do(members.join(member, now))

    def _tick(self) -> None:
        now = time.monotonic()
        self._guests.tick(now)
        self._do(self._membership.tick(now))
        self._conclude(now)

    def _do(self, actions: list[Action]) -> None:
        if self._moved_to:
            return  # the other rendezvous decides
        for action in actions:
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Stop):
                stopped = [self._guests.by_key[key] for key in action.keys if key in self._guests.by_key]
                self._guests.tell({"kind": "stop", "in_peace": action.in_peace}, stopped)
            elif isinstance(action, Say):
                self._guests.tell({"kind": "say", "text": action.text})
            elif isinstance(action, Cause):
                self._tell_cause(action)
            elif isinstance(action, Lost):
                home = [guest for guest in self._guests.by_key.values() if guest.is_home]
                self._guests.tell({"kind": "lost", "line": action.line, "rank": action.rank}, home)
            elif isinstance(action, End):
                names = ("exitcode", "again", "signal", "line", "rank")
                self._guests.tell({"kind": "end", **{name: getattr(action, name) for name in names}})

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
            if member.key in self._guests.by_key:
                part = {"node_rank": member.seat, "first_rank": member.first_rank}
                self._guests.send(self._guests.by_key[member.key], base | part)

    def _reachable(self, member: Member) -> str:
        """Return the address at which other nodes reach a node; this machine's node may have joined over loopback."""
        if is_loopback(member.address):
            for guest in self._guests.by_key.values():
                ours, theirs = guest.peer.addresses
                if guest.is_member and not is_loopback(theirs):
                    return ours
        return member.address

    def _lost(self, guest: Guest, why: str, silent: bool) -> None:  # noqa: FBT001
        self._do(self._membership.gone(guest.key, why, time.monotonic(), silent=silent))

    def _tell_cause(self, cause: Cause) -> None:
        """Send a failure: the whole report to the node of the rendezvous, one line to the others."""
        for guest in self._guests.members:
            text = cause.text if guest.is_home and guest.key != cause.key else ""
            own = guest.key == cause.key
            self._guests.send(guest, {"kind": "cause", "line": cause.line, "text": text, "own": own})
