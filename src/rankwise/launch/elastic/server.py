"""A supervisor that listens: strangers until they have authenticated, then nodes that ask which rank blocks theirs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rankwise.launch.elastic.connection import Connection, ConnectionLost, NotAuthenticated
from rankwise.launch.elastic.hang import HangDetector
from rankwise.launch.elastic.member import Order
from rankwise.launch.local.loop import Loop

_MAX_STRANGERS = 64  # connections that have not joined; beyond that the oldest is closed
_STRANGER_S = 5.0
_TICK_S = 0.25


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
    """Accepts nodes, and decides for all of them which rank blocks the others.

    It owns the listening socket; `say` prints messages that concern this machine only.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(
        self,
        listener: socket.socket,
        token: str,
        loop: Loop,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.port = int(listener.getsockname()[1])
        self._nodes: list[RemoteNode] = []  # `tick` removes those that are lost
        self._listener, self._token, self._loop, self._say = listener, token, loop, say
        self._hangs = HangDetector(self.at_work)
        self._next_key = 0
        self._refused: set[str] = set()  # addresses already reported as having another token
        listener.setblocking(False)  # noqa: FBT003
        loop.watch(listener.fileno(), self._accept)
        loop.every(_TICK_S, self.tick)

    def obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        """Do what a node demands; ConnectionLost, ValueError, TypeError and KeyError close the connection."""
        kind, now = message.get("kind"), time.monotonic()
        if kind == "join":
            node.name, node.is_member = str(message["name"]), True
            if message["home"]:
                self._hangs.home = node.key
            node.send({"kind": "welcome"})
        elif kind == "still" and node.is_member:
            self.send_orders(self._hangs.ask(node.key, message, now))
        elif kind == "seen":
            self.send_orders(self._hangs.note_view(node.key, message, now))

    def at_work(self) -> Mapping[int, str]:
        """Return the names of the nodes with running ranks, by key; {} when the ranks are being ended."""
        return {node.key: node.name for node in self.members}

    def lose(self, node: RemoteNode, lost: ConnectionLost) -> None:
        """Act on the loss of a member."""

    @property
    def members(self) -> list[RemoteNode]:
        """The connected nodes that were accepted as members."""
        return [node for node in self._nodes if node.is_member and not node.lost]

    def close(self) -> None:
        """Stop listening and close all connections; a second call does nothing."""
        self._loop.remove_timer(self.tick)
        if self._listener.fileno() >= 0:
            self._loop.remove(self._listener.fileno())
            self._listener.close()
        for node in self._nodes:
            node.close()

    def send_orders(self, orders: Iterable[Order]) -> None:
        """Send messages to members."""
        for message, keys in orders:
            for node in self.members:
                if keys is None or node.key in keys:
                    node.send(message)

    def tick(self) -> None:
        """Drop strangers that do not join, lose silent members, send heartbeats, and decide what is due."""
        for node in self._nodes:
            if node.is_member and not node.lost:
                node.tick()
            elif time.monotonic() > node.begun_s + _STRANGER_S:
                node.close()
        self._nodes = [node for node in self._nodes if not node.lost]
        self.send_orders(self._hangs.conclude(time.monotonic()))

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return  # the client is gone, or no descriptors are left: the next tick drops strangers and frees some
        strangers = [node for node in self._nodes if not node.is_member and not node.lost]
        if len(strangers) >= _MAX_STRANGERS:
            strangers[0].close()
        node = RemoteNode(self._next_key, connected, self._token, self._loop, obey=self._receive, ended=self._end)
        self._next_key += 1
        self._nodes.append(node)

    def _receive(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        try:
            self.obey(node, message)
        except (KeyError, TypeError, ValueError) as error:
            raise ConnectionLost(f"it sent an invalid message ({type(error).__name__}: {error})") from error

    def _end(self, node: RemoteNode, lost: ConnectionLost) -> None:
        address, known = node.addresses[1], self._refused
        if isinstance(lost, NotAuthenticated) and lost.greeted and address not in known and len(known) < _MAX_STRANGERS:
            known.add(address)
            self._say(f"refused a node at {address}: it has a different token")
        if node.is_member:
            self.lose(node, lost)
