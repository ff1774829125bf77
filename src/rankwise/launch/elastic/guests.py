"""Connections to a listening supervisor: strangers until they have shown the token, then nodes of the run."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankwise.launch.elastic.peer import BEAT_S, SILENT_S, Peer, PeerGone
from rankwise.launch.elastic.seal import HELLO, NODE, Seal
from rankwise.launch.local.loop import Loop

__all__ = ["REFUSED", "Guest", "Guests"]

REFUSED = b"refused-token"
_MAX_STRANGERS = 64  # connections that have not shown the token; the oldest must go
_STRANGER_S = 5.0


@dataclass(kw_only=True, slots=True)
class Guest:
    """A connection: a stranger until it has shown the token, then a node."""

    key: int
    peer: Peer
    nonce: str
    seal: Seal | None = None
    name: str = ""
    is_member: bool = False
    is_home: bool = False


class Guests:
    """Takes in connections, checks their seals, and passes on what they say. Whoever serves it calls `tick`.

    Args:
        listener: listening; taken over.
        token: that every node must know.
        loop: that serves it.
        obey: called with a guest and what it says; ValueError, TypeError and KeyError end the connection.
        lost: called with a member that has gone, why, and whether it may still live behind a cut link.
        say: for what concerns this machine only.

    Attributes:
        by_key: those that are connected.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        loop: Loop,
        *,
        obey: Callable[[Guest, Mapping[str, Any]], None],
        lost: Callable[[Guest, str, bool], None],
        say: Callable[[str], None],
    ) -> None:
        self.by_key: dict[int, Guest] = {}
        self._listener, self._token, self._loop = listener, token, loop
        self._obey, self._lost, self._say = obey, lost, say
        self._next_key = 0
        self._refused: set[str] = set()  # addresses that were said to have another token
        self._ticked_s = time.monotonic()
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)

    @property
    def members(self) -> list[Guest]:
        """Those that were let in."""
        return [guest for guest in self.by_key.values() if guest.is_member]

    def close(self) -> None:
        """Stop listening, and let all go. Calling it twice is fine."""
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        for guest in list(self.by_key.values()):
            self.drop(guest)

    def tell(self, message: Mapping[str, Any], guests: Iterable[Guest] | None = None) -> None:
        """Send a message to members, all of them if none are named."""
        for guest in self.members if guests is None else list(guests):
            if guest.is_member:
                self.send(guest, message)

    def send(self, guest: Guest, message: Mapping[str, Any]) -> None:
        """Send a message to a guest that has shown the token."""
        assert guest.seal is not None
        self._send_line(guest, guest.seal.line(message))

    def lose(self, guest: Guest, why: str, *, silent: bool) -> None:
        """Drop a guest; the loss of a member is told."""
        if self.drop(guest) and guest.is_member:
            self._lost(guest, why, silent)

    def drop(self, guest: Guest) -> bool:
        """Close a connection; return whether it was open."""
        if self.by_key.pop(guest.key, None) is None:
            return False
        self._loop.forget(guest.peer.fileno())
        guest.peer.close()
        return True

    def tick(self, now: float) -> None:
        """Drop strangers that say nothing, lose members that are silent, and show the others that we live."""
        was_away = now > self._ticked_s + SILENT_S / 2  # suspended, or without a core
        self._ticked_s = now
        for guest in list(self.by_key.values()):
            if was_away:
                guest.peer.hear()
            if guest.seal is None or not guest.is_member:
                if now > guest.peer.begun_s + _STRANGER_S:
                    self.drop(guest)
            elif now > guest.peer.heard_s + SILENT_S:
                self.lose(guest, f"nothing heard from it for {SILENT_S:g} s (machine or link is down)", silent=True)
            elif now > guest.peer.spoken_s + BEAT_S:
                self.send(guest, {"kind": "beat"})
            else:
                with contextlib.suppress(PeerGone):
                    guest.peer.flush()

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # it has gone again, or there are no descriptors left: the next tick's strangers give some back
        strangers = [guest for guest in self.by_key.values() if not guest.is_member]
        if len(strangers) >= _MAX_STRANGERS:
            self.drop(strangers[0])
        guest = Guest(key=self._next_key, peer=Peer(connected), nonce=secrets.token_hex(16))
        self._next_key += 1
        self.by_key[guest.key] = guest
        self._loop.watch(guest.peer.fileno(), partial(self._read, guest))
        self._send_line(guest, HELLO + guest.nonce.encode() + b"\n")

    def _read(self, guest: Guest) -> None:
        try:
            for line in guest.peer.read():
                if guest.key in self.by_key:
                    self._take(guest, line)
        except PeerGone as gone:
            self.lose(guest, str(gone), silent=gone.silent)

    def _take(self, guest: Guest, line: bytes) -> None:
        if guest.seal is None:
            if not line.startswith(NODE) or len(line) > len(NODE) + 64:
                self.drop(guest)  # a stranger: no word is lost on it
                return
            nonces = f"{guest.nonce} {line[len(NODE) :].decode(errors='replace')}"
            guest.seal = Seal(self._token, nonces, ours="rendezvous", theirs="node")
            return
        message = _sealed(guest.seal, line)
        if message is None:
            self._refuse_token(guest)
            return
        guest.peer.hear()
        try:
            self._obey(guest, message)
        except (KeyError, TypeError, ValueError) as error:
            self.lose(guest, f"it sent what cannot be understood ({type(error).__name__}: {error})", silent=False)

    def _refuse_token(self, guest: Guest) -> None:
        address = guest.peer.addresses[1]
        if address not in self._refused and len(self._refused) < _MAX_STRANGERS:
            self._refused.add(address)
            self._say(f"refused a node at {address}: it has another token")
        self._send_line(guest, REFUSED + b"\n")
        self.lose(guest, "its messages are not sealed as they must be", silent=False)

    def _send_line(self, guest: Guest, line: bytes) -> None:
        # who is gone is noticed by reading: to lose it here would decide again in the midst of a decision
        with contextlib.suppress(PeerGone):
            guest.peer.write(line)


def _sealed(seal: Seal, line: bytes) -> dict[str, Any] | None:
    try:
        return seal.message(line)
    except json.JSONDecodeError:
        return None
