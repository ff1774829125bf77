"""Connections to a listening supervisor: strangers until they have authenticated, then nodes of the run."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.elastic.member import Order
from rankwise.launch.local.loop import Loop

__all__ = ["RemoteNode", "Server"]

_MAX_STRANGERS = 64  # connections that have not joined; beyond that the oldest is closed
_STRANGER_S = 5.0


class RemoteNode(Connection):
    """The server's side of a connection: to a stranger until it has joined, then to a node.

    Attributes:
        key: unique; nodes that connect later have greater keys.
        name: host name.
        is_member: whether it has joined.
    """

    def __init__(
        self,
        key: int,
        connected: socket.socket,
        token: str,
        loop: Loop,
        *,
        obey: Callable[[RemoteNode, Mapping[str, Any]], None],
        ended: Callable[[RemoteNode, ConnectionLost], None],
    ) -> None:
        self.key, self.name, self.is_member = key, "", False
        super().__init__(connected, token, loop, obey=partial(obey, self), ended=partial(ended, self))


class Server:
    """Accepts connections, and passes on their authenticated messages. Its owner calls `tick`.

    Args:
        listener: listening socket; this object owns it.
        token: the secret that every node must know.
        loop: the event loop.
        obey: called with a node and its message; ConnectionLost, ValueError, TypeError and KeyError close the
            connection.
        lost: called with a lost member, the reason, and whether it may still be alive behind a network split.
        say: prints messages that concern this machine only.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        loop: Loop,
        *,
        obey: Callable[[RemoteNode, Mapping[str, Any]], None],
        lost: Callable[[RemoteNode, str, bool], None],
        say: Callable[[str], None],
    ) -> None:
        self._nodes: list[RemoteNode] = []  # `tick` removes those that are lost
        self._listener, self._token, self._loop = listener, token, loop
        self._obey, self._lost, self._say = obey, lost, say
        self._next_key = 0
        self._refused: set[str] = set()  # addresses already reported as having another token
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)

    @property
    def members(self) -> list[RemoteNode]:
        """The connected nodes that were accepted as members."""
        return [node for node in self._nodes if node.is_member and not node.lost]

    def close(self) -> None:
        """Stop listening and close all connections; a second call does nothing."""
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        for node in self._nodes:
            node.close()

    def tell(self, orders: Iterable[Order]) -> None:
        """Send messages to members."""
        for message, keys in orders:
            for node in self.members:
                if keys is None or node.key in keys:
                    node.send(message)

    def tick(self) -> None:
        """Drop strangers that do not join, lose silent members, and send heartbeats to the others."""
        for node in self._nodes:
            if node.is_member and not node.lost:
                node.tick()
            elif time.monotonic() > node.begun_s + _STRANGER_S:
                node.close()
        self._nodes = [node for node in self._nodes if not node.lost]

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # the client is gone, or no descriptors are left: the next tick drops strangers and frees some
        strangers = [node for node in self._nodes if not node.is_member and not node.lost]
        if len(strangers) >= _MAX_STRANGERS:
            strangers[0].close()
        node = RemoteNode(self._next_key, connected, self._token, self._loop, obey=self._hear, ended=self._end)
        self._next_key += 1
        self._nodes.append(node)

    def _hear(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        try:
            self._obey(node, message)
        except (KeyError, TypeError, ValueError) as error:
            raise ConnectionLost(f"it sent an invalid message ({type(error).__name__}: {error})") from error

    def _end(self, node: RemoteNode, lost: ConnectionLost) -> None:
        address, known = node.addresses[1], self._refused
        if isinstance(lost, NotAuthenticated) and lost.greeted and address not in known and len(known) < _MAX_STRANGERS:
            known.add(address)
            self._say(f"refused a node at {address}: it has a different token")
        if node.is_member:
            self._lost(node, str(lost), lost.silent)
