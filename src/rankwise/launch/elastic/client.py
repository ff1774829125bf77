"""A node's side of its connection to the rendezvous."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from rankwise.errors import LaunchError
from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.local.loop import Loop

__all__ = ["Client"]

_TICK_S = 0.25


class Client:
    """Talks to a rendezvous.

    Args:
        connected: socket towards the rendezvous; this object owns it.
        host: the rendezvous's host name, for messages.
        token: the secret that the rendezvous must know too.
        loop: the event loop.
        first: returns the first message of this node, once the rendezvous has greeted.
        obey: called with each message.
        ended: called when `lost` or `error` is set, unless by `close`.

    Attributes:
        error: why this node cannot take part: the other side is no rendezvous of this run, or it refuses this node.
        lost: why the rendezvous is lost, "" while it is connected.
        silent: whether it was lost because it was silent; then it may still be alive.
        welcome: whether it has accepted this node.
        own_address: this node's address on the connection.
        begun_s: when it was created, monotonic clock.
    """

    def __init__(
        self,
        connected: socket.socket,
        host: str,
        token: str,
        loop: Loop,
        first: Callable[[], Mapping[str, Any]],
        *,
        obey: Callable[[dict[str, Any]], object],
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self.error: LaunchError | None = None
        self.lost, self.silent, self.welcome = "", False, False
        self.host = host
        self._loop, self._connection = loop, Connection(connected, token, first)
        self._obey, self._ended = obey, ended
        self.own_address, self.begun_s = self._connection.addresses[0], self._connection.begun_s
        loop.watch(self._connection.fileno(), self._read)
        loop.every(_TICK_S, self._tick)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the rendezvous; do nothing if it is lost."""
        if not self.lost:
            self._connection.send(message)

    def close(self) -> None:
        """Close the connection."""
        if not self.lost:
            self._disconnect("this node has left")

    def _read(self) -> None:
        where = f"{self.host} ({self._connection.addresses[1]})"
        try:
            for message in self._connection.messages():
                if message.get("kind") == "refused":
                    self._fail(f"the rendezvous at {where} refuses this node: {message.get('why')}")
                elif message.get("kind") == "welcome":
                    self.welcome = True
                else:
                    self._obey(message)
                if self.lost:
                    return  # closed meanwhile
        except NotAuthenticated as stranger:
            self._fail(stranger.what.replace("{where}", where))
        except ConnectionLost as lost:
            self._lose(lost)

    def _tick(self) -> None:
        try:
            self._connection.tick(time.monotonic())
        except ConnectionLost as lost:
            self._lose(lost)

    def _fail(self, why: str) -> None:
        self.error = LaunchError(why)
        self._ended()

    def _lose(self, lost: ConnectionLost) -> None:
        self.silent = lost.silent
        self._disconnect(str(lost))
        self._ended()

    def _disconnect(self, why: str) -> None:
        self.lost = why
        self._loop.forget_every(self._tick)
        self._loop.forget(self._connection.fileno())
        self._connection.close()
