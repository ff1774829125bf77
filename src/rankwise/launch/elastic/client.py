"""A node's side of its connection to the rendezvous."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from rankwise.errors import LaunchError
from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.local.loop import Loop

__all__ = ["Client"]


class Client(Connection):
    """A connection to a rendezvous.

    Args:
        connected: socket towards the rendezvous; this object owns it.
        host: the rendezvous's host name, for messages.
        token: the secret that the rendezvous must know too.
        loop: the event loop.
        first: returns the first message of this node, once the rendezvous has greeted.
        obey: called with each message.
        ended: called when the rendezvous is lost or `error` is set, unless by `close`.

    Attributes:
        error: why this node cannot take part: the other side is no rendezvous of this run, or it refuses this node.
        silent: whether it was lost because it was silent; then it may still be alive.
        welcome: whether it has accepted this node.
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
        self.silent = self.welcome = False
        self.host, self._handle, self._notify = host, obey, ended
        super().__init__(connected, token, loop, obey=self._hear, ended=self._end, first=first)

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "refused":
            where = f"{self.host} ({self.addresses[1]})"
            self.error = LaunchError(f"the rendezvous at {where} refuses this node: {message.get('why')}")
            raise ConnectionLost("it refuses this node")
        if message.get("kind") == "welcome":
            self.welcome = True
        else:
            self._handle(message)

    def _end(self, lost: ConnectionLost) -> None:
        if isinstance(lost, NotAuthenticated):
            self.error = LaunchError(lost.what.replace("{where}", f"{self.host} ({self.addresses[1]})"))
        self.silent = lost.silent
        self._notify()
