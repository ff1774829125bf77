"""Connections to a listening supervisor: strangers until they have authenticated, then nodes of the run."""

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
_MAX_STRANGERS = 64  # unauthenticated connections; beyond that the oldest is closed
_STRANGER_S = 5.0


@dataclass(kw_only=True, slots=True)
class Guest:
    """A connection: a stranger until it has authenticated, then a node."""

    key: int
    peer: Peer
    nonce: str
    seal: Seal | None = None
    name: str = ""
    is_member: bool = False
    is_home: bool = False


class Guests:
    """Accepts connections, checks their seals, and passes on their messages. Its owner calls `tick`.

    Args:
        listener: listening socket; this object owns it.
        token: the secret that every node must know.
        loop: the event loop.
        obey: called with a guest and its message; ValueError, TypeError and KeyError close the connection.
        lost: called with a lost member, the reason, and whether it may still be alive behind a network split.
        say: prints messages that concern this machine only.

    Attributes:
        by_key: key -> connected guest.
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
        self._refused: set[str] = set()  # addresses already reported as having another token
        self._ticked_s = time.monotonic()
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)

    @property
    def members(self) -> list[Guest]:
        """The guests that were accepted as members."""
        return [guest for guest in self.by_key.values() if guest.is_member]

    def close(self) -> None:
        """Stop listening and close all connections; a second call does nothing."""
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        for guest in list(self.by_key.values()):
            self.drop(guest)

    def tell(self, message: Mapping[str, Any], guests: Iterable[Guest] | None = None) -> None:
        """Send a message to the given members, by default to all."""
        for guest in self.members if guests is None else list(guests):
            if guest.is_member:
                self.send(guest, message)

    def send(self, guest: Guest, message: Mapping[str, Any]) -> None:
        """Send a message to an authenticated guest."""
        assert guest.seal is not None
        self._send_line(guest, guest.seal.line(message))

    def lose(self, guest: Guest, why: str, *, silent: bool) -> None:
        """Drop a guest; call `lost` if it was a member."""
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
        """Drop silent strangers, lose silent members, and send heartbeats to the others."""
        was_away = now > self._ticked_s + SILENT_S / 2  # this process was suspended, or got no CPU time
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
            return  # the client is gone, or no descriptors are left: the next tick drops strangers and frees some
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
                self.drop(guest)  # a stranger gets no answer
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
            self.lose(guest, f"it sent an invalid message ({type(error).__name__}: {error})", silent=False)

    def _refuse_token(self, guest: Guest) -> None:
        address = guest.peer.addresses[1]
        if address not in self._refused and len(self._refused) < _MAX_STRANGERS:
            self._refused.add(address)
            self._say(f"refused a node at {address}: it has a different token")
        self._send_line(guest, REFUSED + b"\n")
        self.lose(guest, "its messages are not authenticated correctly", silent=False)

    def _send_line(self, guest: Guest, line: bytes) -> None:
        # ignore a lost guest, which the next read notices: calling `lost` here would nest one decision in another
        with contextlib.suppress(PeerGone):
            guest.peer.write(line)


def _sealed(seal: Seal, line: bytes) -> dict[str, Any] | None:
    try:
        return seal.message(line)
    except json.JSONDecodeError:
        return None
