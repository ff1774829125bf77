"""Which rank of all nodes blocks the others: the first node asks all nodes, and decides for all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankwise.launch.elastic.client import Client
from rankwise.launch.elastic.hang import HangDetector, obey_inquiry
from rankwise.launch.elastic.member import Order
from rankwise.launch.elastic.server import RemoteNode, Server
from rankwise.launch.failures.record import keep_standstill
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console, tell
from rankwise.launch.local.loop import Loop

__all__ = ["HangClient", "HangServer"]

_TICK_S = 0.25
_CONNECT_S = 10.0


class HangServer:
    """Serves the nodes' questions, in the event loop of the first node's supervisor.

    Args:
        address: address of this node that the others can reach.
        secret: shared by all nodes of the start.
        loop: the event loop.
        say: prints messages that concern this node only.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(self, address: str, secret: str, loop: Loop, say: Callable[[str], None]) -> None:
        listener = socket.create_server((address, 0), backlog=1024)
        self.port = int(listener.getsockname()[1])
        self._loop = loop
        lost = lambda *_: None  # noqa: E731  (Slurm ends the other nodes)
        self._server = Server(listener, secret, loop, obey=self._obey, lost=lost, say=say)
        self._hangs = HangDetector(lambda: {node.key: node.name for node in self._server.members})
        loop.every(_TICK_S, self._tick)

    def close(self) -> None:
        """Close all connections; from now on each node judges alone."""
        self._loop.forget_every(self._tick)
        self._server.close()

    def _obey(self, node: RemoteNode, message: Mapping[str, Any]) -> None:
        kind, now, orders = message.get("kind"), time.monotonic(), list[Order]()
        if kind == "join":
            node.name, node.is_member = str(message["name"]), True
            if message["home"]:
                self._hangs.home = node.key
            node.send({"kind": "welcome"})
        elif kind == "still" and node.is_member:
            orders = self._hangs.ask(node.key, message, now)
        elif kind == "seen":
            orders = self._hangs.note_view(node.key, message, now)
        self._server.tell(orders)

    def _tick(self) -> None:
        self._server.tick()
        self._server.tell(self._hangs.conclude(time.monotonic()))


class HangClient:
    """Implements `Fellows` on each node of an allocation. If one node fails, Slurm itself ends the others.

    Args:
        address: address of the first node, and port of its `HangServer`.
        secret: shared by all nodes of the start.
        node: number of this node.
        loop: the supervisor's event loop.
        console: where the first node reports a standstill.
        run_dir: where the standstill is recorded; None: nowhere.

    Attributes:
        attempt: the attempt whose ranks are examined; None before there is one.

    Raises:
        OSError: the first node cannot be reached.
    """

    def __init__(
        self, address: tuple[str, int], secret: str, *, node: int, loop: Loop, console: Console, run_dir: Path | None
    ) -> None:
        self.attempt: Attempt | None = None
        self._node, self._console, self._run_dir = node, console, run_dir
        connected = socket.create_connection(address, timeout=_CONNECT_S)
        join = {"kind": "join", "name": socket.gethostname(), "home": node == 0}
        self._client = Client(connected, address[0], secret, loop, lambda: join, obey=self._obey)

    def close(self) -> None:
        """Close the connection to the first node."""
        self._client.close()

    def failing(self) -> None:
        """Do nothing: Slurm ends the other nodes when this one ends."""

    def leaving(self, number: int) -> None:
        """Do nothing: Slurm has signalled all nodes."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask all nodes; if the first node is gone, judge by this node's ranks alone."""
        self._client.send({"kind": "still", **question})
        if self._client.lost:
            alone = HangDetector(lambda: {0: socket.gethostname()})
            alone.home = 0
            for order in alone.ask(0, question, time.monotonic()):
                if order.keys == (0,):
                    self._obey(order.message)

    def _obey(self, message: Mapping[str, Any]) -> None:
        obey_inquiry(message, self.attempt, send=self._client.send, tell=self._tell_standstill)

    def _tell_standstill(self, text: str) -> None:
        # srun collects the output of all nodes: the first node alone tells, if it is there
        if self._node == 0 or self._client.lost:
            tell(self._console, text)
            keep_standstill(self._run_dir, text, self._console.say)
