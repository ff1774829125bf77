"""The rendezvous: takes in nodes, listens to their words and their silence, and tells all of them what is decided."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rankwise.launch.elastic.decisions import Action, Cause, End, Lost, Member, Say, Start, Stop, done_from
from rankwise.launch.elastic.inquiry import PATIENCE_S, Blame, Inquiry, Standstill, view_from
from rankwise.launch.elastic.interfaces import is_loopback
from rankwise.launch.elastic.likeness import difference
from rankwise.launch.elastic.lookback import LookBack, Standing, standing_from
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.peer import BEAT_S, SILENT_S, Peer, PeerGone
from rankwise.launch.elastic.seal import HELLO, NODE, Seal
from rankwise.launch.local.loop import Loop

__all__ = ["REFUSED", "Coordinator"]

REFUSED = b"refused-token"
_MAX_STRANGERS = 64  # connections that have not shown the token; the oldest must go
_STRANGER_S = 5.0
_TICK_S = 0.25
_LINGER_S = 5.0


@dataclass(kw_only=True, slots=True)
class _Guest:
    """A connection: a stranger until it has shown the token, then a node."""

    key: int
    peer: Peer
    nonce: str
    seal: Seal | None = None
    name: str = ""
    is_member: bool = False
    is_home: bool = False


class Coordinator:
    """Serves a membership on a listening socket, inside a supervisor's loop.

    Args:
        listener: listening; taken over.
        membership: of the run.
        token: that every node must know.
        loop: that serves it.
        say: for what concerns this machine only.
        home: what our own node shows of itself, as it joins: others must be like it.
        run_id: the same for all rounds; a run that comes from a lost rendezvous keeps its own.
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
        self._listener, self._membership, self._token, self._loop, self._say = listener, membership, token, loop, say
        self._guests: dict[int, _Guest] = {}
        self._next_key, self._run_id, self._home = 0, run_id, home
        self._refused: set[str] = set()  # addresses that were said to have another token
        self._begun_s = self._ticked_s = time.monotonic()
        self._id, self._host, self._place, self._moved_to = secrets.token_hex(8), "", 0, ""
        self._look_back: LookBack | None = None
        self._inquiry: Inquiry | None = None
        self._num_inquiries = 0
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)
        loop.every(_TICK_S, self._tick)

    def close(self) -> None:
        """Let all nodes go; those that have not read their last message yet are given a few seconds for it."""
        deadline = time.monotonic() + _LINGER_S
        while any(guest.is_member for guest in self._guests.values()) and time.monotonic() < deadline:
            self._loop.step(0.05)
        if self._look_back is not None:
            self._look_back.close()
        self._loop.forget_every(self._tick)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for guest in list(self._guests.values()):
            self._drop(guest)

    def look_back(self, hosts: Mapping[str, Sequence[str]], host: str, port: int) -> None:
        """Look for a rendezvous on other hosts, where the run began, has gone on, or begins anew behind a cut link.

        Args:
            hosts: those of the list, in its order, with their addresses.
            host: ours among them.
            port: of all.
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
        """Two rendezvous see each other: the one with less of the run goes over to the other, with all its nodes."""
        own = standing_from(self._standing(""))
        if other.id != self._id and other > own and not self._moved_to and self._membership.phase != "over":
            self._moved_to = other.host
            self._tell({"kind": "moved", "host": other.host})

    def _answer(self, guest: _Guest, message: Mapping[str, Any]) -> None:
        other = standing_from(message)
        if message.get("run") == self._home["like"]["--rdzv-id"] and self._look_back is not None and not self._moved_to:
            if self._membership.phase != "over":
                self._send(guest, self._standing("standing"))
            self._compare(other)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # it has gone again, or there are no descriptors left: the next tick's strangers give some back
        strangers = [guest for guest in self._guests.values() if not guest.is_member]
        if len(strangers) >= _MAX_STRANGERS:
            self._drop(strangers[0])
        guest = _Guest(key=self._next_key, peer=Peer(connected), nonce=secrets.token_hex(16))
        self._next_key += 1
        self._guests[guest.key] = guest
        self._loop.watch(guest.peer.fileno(), partial(self._read, guest))
        self._send_line(guest, HELLO + guest.nonce.encode() + b"\n")

    def _read(self, guest: _Guest) -> None:
        try:
            for line in guest.peer.read():
                if guest.key in self._guests:
                    self._take(guest, line)
        except PeerGone as gone:
            self._lose(guest, str(gone), silent=gone.silent)

    def _take(self, guest: _Guest, line: bytes) -> None:
        if guest.seal is None:
            if not line.startswith(NODE) or len(line) > len(NODE) + 64:
                self._drop(guest)  # a stranger: no word is lost on it
                return
            nonces = f"{guest.nonce} {line[len(NODE) :].decode(errors='replace')}"
            guest.seal = Seal(self._token, nonces, ours="rendezvous", theirs="node")
            return
        message = _sealed(guest.seal, line)
        if message is None:
            self._refuse_token(guest)
            return
        guest.peer.hear()
        self._obey(guest, message)

    def _refuse_token(self, guest: _Guest) -> None:
        address = guest.peer.addresses[1]
        if address not in self._refused and len(self._refused) < _MAX_STRANGERS:
            self._refused.add(address)
            self._say(f"refused a node at {address}: it has another token")
        self._send_line(guest, REFUSED + b"\n")
        self._lose(guest, "its messages are not sealed as they must be", silent=False)

    def _obey(self, guest: _Guest, message: Mapping[str, Any]) -> None:
        now, kind, members = time.monotonic(), message.get("kind"), self._membership
        try:
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
                self._lose(guest, "it was asked to end", silent=False)
        except (KeyError, TypeError, ValueError) as error:
            self._lose(guest, f"it sent what cannot be understood ({type(error).__name__}: {error})", silent=False)

    def _inquire(self, guest: _Guest, message: Mapping[str, Any], now: float) -> None:
        """The ranks of a node stand still: ask all that are at work, unless they are asked already."""
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
                    self._send(self._guests[key], {"kind": "look", "inquiry": self._num_inquiries, "final": final})
        self._conclude(now)

    def _hear_view(self, guest: _Guest, message: Mapping[str, Any], now: float) -> None:
        if self._inquiry is not None and message["inquiry"] == self._num_inquiries:
            self._inquiry.views[guest.key] = view_from(message)
            self._conclude(now)

    def _conclude(self, now: float) -> None:
        """Tell what the views of the nodes come to, once all are there."""
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
            for guest in self._guests.values():
                if guest.is_member:
                    whole = guest.is_home or guest.key == found.key
                    self._send(guest, {"kind": "standstill", "text": found.text if whole else found.line})
        elif found.key in self._guests and (inquiry.final or isinstance(found, Blame)):
            failure = found.failure if isinstance(found, Blame) else None
            self._send(self._guests[found.key], {"kind": "hung", "failure": failure})

    def _join(self, guest: _Guest, message: Mapping[str, Any], now: float) -> None:
        guest.name = str(message["name"])
        guest.is_home = message["id"] == self._home["id"]
        like = {str(name): str(value) for name, value in message["like"].items()}
        if self._moved_to:
            self._send(guest, {"kind": "moved", "host": self._moved_to})
            return
        why = difference(self._home["name"], self._home["like"], guest.name, like)
        if why or self._membership.phase == "over":
            self._say(f"refused node {guest.name} ({guest.peer.addresses[1]}): {why or 'the run is over'}")
            self._send(guest, {"kind": "refused", "why": why or "the run is over"})
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
        if not members.round:  # else the run has never left this place: what those know who were cut off is old
            members.failures = max(members.failures, int(message.get("failures", 0)))
            members.quorum = max(members.quorum, int(message.get("quorum", 0)))
            self._run_id = str(message.get("run_id") or self._run_id)
        self._send(guest, {"kind": "welcome"})
        self._do(members.join(member, now))

    def _tick(self) -> None:
        now, before = time.monotonic(), self._ticked_s
        self._ticked_s = now
        for guest in list(self._guests.values()):
            if now > before + SILENT_S / 2:
                guest.peer.hear()  # it was we who were away: suspended, or without a core
            if guest.seal is None or not guest.is_member:
                if now > guest.peer.begun_s + _STRANGER_S:
                    self._drop(guest)
            elif now > guest.peer.heard_s + SILENT_S:
                self._lose(guest, f"nothing heard from it for {SILENT_S:g} s (machine or link is down)", silent=True)
            elif now > guest.peer.spoken_s + BEAT_S:
                self._send(guest, {"kind": "beat"})
            else:
                with contextlib.suppress(PeerGone):
                    guest.peer.flush()
        self._do(self._membership.tick(now))
        self._conclude(now)

    def _do(self, actions: list[Action]) -> None:
        if self._moved_to:
            return  # it is decided elsewhere
        for action in actions:
            if isinstance(action, Start):
                self._start(action)
            elif isinstance(action, Stop):
                stopped = [self._guests[key] for key in action.keys if key in self._guests]
                self._tell({"kind": "stop", "in_peace": action.in_peace}, stopped)
            elif isinstance(action, Say):
                self._tell({"kind": "say", "text": action.text})
            elif isinstance(action, Cause):
                self._tell_cause(action)
            elif isinstance(action, Lost):
                home = [guest for guest in self._guests.values() if guest.is_home]
                self._tell({"kind": "lost", "line": action.line, "rank": action.rank}, home)
            elif isinstance(action, End):
                names = ("exitcode", "again", "signal", "line", "rank")
                self._tell({"kind": "end", **{name: getattr(action, name) for name in names}})

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
            if member.key in self._guests:
                part = {"node_rank": member.seat, "first_rank": member.first_rank}
                self._send(self._guests[member.key], base | part)

    def _reachable(self, member: Member) -> str:
        """Return where the others reach a node; our own node came by an address that may be for us alone."""
        if is_loopback(member.address):
            for guest in self._guests.values():
                ours, theirs = guest.peer.addresses
                if guest.is_member and not is_loopback(theirs):
                    return ours
        return member.address

    def _tell(self, message: Mapping[str, Any], guests: Sequence[_Guest] | None = None) -> None:
        """Send a message to nodes, all of them if none are named."""
        for guest in list(self._guests.values()) if guests is None else guests:
            if guest.is_member:
                self._send(guest, message)

    def _tell_cause(self, cause: Cause) -> None:
        """The whole report where it happened, which has it, and here; one line elsewhere."""
        for guest in list(self._guests.values()):
            if guest.is_member:
                text = cause.text if guest.is_home and guest.key != cause.key else ""
                own = guest.key == cause.key
                self._send(guest, {"kind": "cause", "line": cause.line, "text": text, "own": own})

    def _send(self, guest: _Guest, message: Mapping[str, Any]) -> None:
        assert guest.seal is not None
        self._send_line(guest, guest.seal.line(message))

    def _send_line(self, guest: _Guest, line: bytes) -> None:
        # who is gone is noticed by reading: to lose it here would decide again in the midst of a decision
        with contextlib.suppress(PeerGone):
            guest.peer.write(line)

    def _lose(self, guest: _Guest, why: str, *, silent: bool) -> None:
        if self._drop(guest) and guest.is_member:
            self._do(self._membership.gone(guest.key, why, time.monotonic(), silent=silent))

    def _drop(self, guest: _Guest) -> bool:
        if self._guests.pop(guest.key, None) is None:
            return False
        self._loop.forget(guest.peer.fileno())
        guest.peer.close()
        return True


def _sealed(seal: Seal, line: bytes) -> dict[str, Any] | None:
    try:
        return seal.message(line)
    except json.JSONDecodeError:
        return None
