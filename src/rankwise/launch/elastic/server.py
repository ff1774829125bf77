"""Connections to a listening supervisor: strangers until they have authenticated, then nodes of the run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.local.loop import Loop

__all__ = ["RemoteNode", "Server"]

_MAX_STRANGERS = 64  # connections that have not joined; beyond that the oldest is closed
_STRANGER_S = 5.0


@dataclass(kw_only=True, slots=True)
class RemoteNode:
    """A connection: a stranger until it has joined, then a node."""

    key: int
    connection: Connection
    name: str = ""
    is_member: bool = False
    is_home: bool = False


class Server:
    """Accepts connections, and passes on their authenticated messages. Its owner calls `tick`.

    Args:
        listener: listening socket; this object owns it.
        token: the secret that every node must know.
        loop: the event loop.
        obey: called with a node and its message; ValueError, TypeError and KeyError close the connection.
        lost: called with a lost member, the reason, and whether it may still be alive behind a network split.
        say: prints messages that concern this machine only.

    Attributes:
        by_key: key -> connected node.
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
        self.by_key: dict[int, RemoteNode] = {}
        self._listener, self._token, self._loop = listener, token, loop
        self._obey, self._lost, self._say = obey, lost, say
        self._next_key = 0
        self._refused: set[str] = set()  # addresses already reported as having another token
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)

    @property
    def members(self) -> list[RemoteNode]:
        """The nodes that were accepted as members."""
        return [node for node in self.by_key.values() if node.is_member]

    def close(self) -> None:
        """Stop listening and close all connections; a second call does nothing."""
        if self._listener.fileno() >= 0:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
        for node in list(self.by_key.values()):
            self.drop(node)

    def tell(self, message: Mapping[str, Any], keys: Collection[int | None] | None = None) -> None:
        """Send a message to the members with these keys, by default to all."""
        for node in self.members:
            if keys is None or node.key in keys:
                node.connection.send(message)

    def lose(self, node: RemoteNode, why: str, *, silent: bool) -> None:
        """Drop a node; call `lost` if it was a member."""
        if self.drop(node) and node.is_member:
            self._lost(node, why, silent)

    def drop(self, node: RemoteNode) -> bool:
        """Close a connection; return whether it was open."""
        if self.by_key.pop(node.key, None) is None:
            return False
        self._loop.forget(node.connection.fileno())
        node.connection.close()
        return True

    def tick(self, now: float) -> None:
        """Drop strangers that do not join, lose silent members, and send heartbeats to the others."""
        for node in list(self.by_key.values()):
            if node.is_member:
                try:
                    node.connection.tick(now)
                except ConnectionLost as lost:
                    self.lose(node, str(lost), silent=lost.silent)
            elif now > node.connection.begun_s + _STRANGER_S:
                self.drop(node)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # the client is gone, or no descriptors are left: the next tick drops strangers and frees some
        strangers = [node for node in self.by_key.values() if not node.is_member]
        if len(strangers) >= _MAX_STRANGERS:
            self.drop(strangers[0])
        node = RemoteNode(key=self._next_key, connection=Connection(connected, self._token))
        self._next_key += 1
        self.by_key[node.key] = node
        self._loop.watch(node.connection.fileno(), partial(self._read, node))

    def _read(self, node: RemoteNode) -> None:
        try:
            for message in node.connection.messages():
                self._obey(node, message)
                if node.key not in self.by_key:
                    return
        except NotAuthenticated as stranger:
            if stranger.greeted:
                self._refuse_token(node)
            self.lose(node, str(stranger), silent=False)  # a stranger gets no answer
        except ConnectionLost as lost:
            self.lose(node, str(lost), silent=lost.silent)
        except (KeyError, TypeError, ValueError) as error:
            self.lose(node, f"it sent an invalid message ({type(error).__name__}: {error})", silent=False)

    def _refuse_token(self, node: RemoteNode) -> None:
        address = node.connection.addresses[1]
        if address not in self._refused and len(self._refused) < _MAX_STRANGERS:
            self._refused.add(address)
            self._say(f"refused a node at {address}: it has a different token")
        node.connection.refuse()
