"""A node's side of its connection to the rendezvous."""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rankwise.errors import LaunchError
from rankwise.launch.elastic.guests import REFUSED
from rankwise.launch.elastic.peer import BEAT_S, SILENT_S, Peer, PeerGone
from rankwise.launch.elastic.seal import HELLO, NODE, Seal
from rankwise.launch.local.loop import Loop

__all__ = ["Link"]

_TICK_S = 0.25


class Link:
    """Joins a rendezvous and collects its messages.

    Args:
        peer: connection to the rendezvous; this object owns it.
        host: the rendezvous's host name, for messages.
        token: the secret that the rendezvous must know too.
        loop: the event loop.
        join: the first message of this node.

    Attributes:
        messages: received messages that were not yet taken out, oldest first.
        lost: why the rendezvous is lost, "" while it is connected.
        silent: whether it was lost because it was silent; then it may still be alive.
        welcome: whether it has accepted this node.
        own_address: this node's address on the connection.
    """

    def __init__(self, peer: Peer, host: str, token: str, loop: Loop, join: Mapping[str, Any]) -> None:
        self.messages: deque[dict[str, Any]] = deque()
        self.lost, self.silent, self.welcome = "", False, False
        self.own_address = peer.addresses[0]
        self.host = host
        self._peer, self._token, self._loop, self._join = peer, token, loop, join
        self._seal: Seal | None = None
        self._error: LaunchError | None = None
        self._ticked_s = time.monotonic()
        self.on_message: Callable[[], object] = lambda: None
        loop.watch(peer.fileno(), self._read)
        loop.every(_TICK_S, self._tick)

    def check(self) -> None:
        """Raise if this node cannot take part.

        Raises:
            LaunchError: the other side is not a rendezvous of this run, or it refuses this node; with the reason.
        """
        if self._error is not None:
            raise self._error

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the rendezvous; do nothing if it is lost."""
        if self._seal is None or self.lost:
            return
        try:
            self._peer.write(self._seal.line(message))
        except PeerGone as gone:
            self._lose(str(gone), silent=gone.silent)

    def close(self) -> None:
        """Close the connection."""
        if not self.lost:
            self._lose("this node has left", silent=False)

    def _read(self) -> None:
        try:
            for line in self._peer.read():
                self._take(line)
        except PeerGone as gone:
            self._lose(str(gone), silent=gone.silent)
        self.on_message()

    def _take(self, line: bytes) -> None:
        where = f"{self.host} ({self._peer.addresses[1]})"
        if self._seal is None:
            if not line.startswith(HELLO):
                kind = HELLO.rpartition(b"-")[0]
                what = (
                    "a rendezvous of another version of rankwise"
                    if line.startswith(kind)
                    else "not a rendezvous of rankwise"
                )
                self._error = LaunchError(f"{where} answers, but it is {what}; it sends {line[:60]!r}")
                return
            nonce = secrets.token_hex(16)
            nonces = f"{line[len(HELLO) :].decode(errors='replace')} {nonce}"
            self._seal = Seal(self._token, nonces, ours="node", theirs="rendezvous")
            self._peer.write(NODE + nonce.encode() + b"\n")
            self._peer.write(self._seal.line(self._join))
            return
        if line.startswith(REFUSED):
            self._error = LaunchError(
                f"the rendezvous at {where} has a different token: give all nodes the same token, with "
                "RANKWISE_TOKEN, --token-file or ~/.config/rankwise/token"
            )
            return
        message = self._message(line)
        if message is None:
            self._error = LaunchError(f"{where} sends messages that are not authenticated with our token")
            return
        self._peer.hear()
        self._sort(message, where)

    def _message(self, line: bytes) -> dict[str, Any] | None:
        assert self._seal is not None
        try:
            return self._seal.message(line)
        except json.JSONDecodeError:
            return None

    def _sort(self, message: dict[str, Any], where: str) -> None:
        if message.get("kind") == "refused":
            self._error = LaunchError(f"the rendezvous at {where} refuses this node: {message.get('why')}")
        elif message.get("kind") == "welcome":
            self.welcome = True
        elif message.get("kind") != "beat":
            self.messages.append(message)

    def _tick(self) -> None:
        now, before = time.monotonic(), self._ticked_s
        self._ticked_s = now
        if now > before + SILENT_S / 2:
            self._peer.hear()  # this process was suspended, not the rendezvous
        try:
            if now > self._peer.heard_s + SILENT_S:
                self._lose(f"nothing heard from it for {SILENT_S:g} s (machine or link is down)", silent=True)
                self.on_message()
            elif self.welcome and now > self._peer.spoken_s + BEAT_S:
                self.send({"kind": "beat"})
            else:
                self._peer.flush()
        except PeerGone as gone:
            self._lose(str(gone), silent=gone.silent)
            self.on_message()

    def _lose(self, why: str, *, silent: bool) -> None:
        if not self.lost:
            self.lost, self.silent = why, silent
            self._loop.forget_every(self._tick)
            self._loop.forget(self._peer.fileno())
            self._peer.close()
