"""Which rank of all nodes blocks the others: the first node asks all nodes, and decides for all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankwise.launch.elastic.guests import Guest, Guests
from rankwise.launch.elastic.inquiry import Blame, Inquiry, Standstill, failure_from, view_from
from rankwise.launch.elastic.link import Link
from rankwise.launch.elastic.peer import Peer
from rankwise.launch.failures.record import keep_standstill
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.stage import tell

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
        self._inquiry: Inquiry | None = None
        self._loop, self._num_inquiries = loop, 0
        self._guests = Guests(listener, secret, loop, obey=self._obey, lost=self._lost, say=say)
        loop.every(_TICK_S, self._tick)

    def close(self) -> None:
        """Close all connections; from now on each node judges alone."""
        self._loop.forget_every(self._tick)
        self._guests.close()

    def _obey(self, guest: Guest, message: Mapping[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "join":
            guest.name, guest.is_member = str(message["name"]), True
            self._guests.send(guest, {"kind": "welcome"})
        elif kind == "still" and guest.is_member:
            self._inquire(guest, message)
        elif kind == "seen" and self._inquiry is not None and message["inquiry"] == self._num_inquiries:
            self._inquiry.views[guest.key] = view_from(message)
        self._conclude()

    def _lost(self, guest: Guest, why: str, silent: bool) -> None:  # noqa: ARG002, FBT001
        """Conclude without a lost node; Slurm ends the others anyway."""
        self._conclude()

    def _inquire(self, guest: Guest, message: Mapping[str, Any]) -> None:
        view, final = view_from(message), bool(message["final"])
        if self._inquiry is not None and (self._inquiry.final or not final):
            self._inquiry.views[guest.key] = view
            return
        self._num_inquiries += 1
        self._inquiry = Inquiry(
            key=guest.key,
            round=0,
            final=final,
            limit_s=float(message["limit_s"]),
            reason=str(message["reason"]),
            begun_s=time.monotonic(),
            views={guest.key: view},
        )
        look = {"kind": "look", "inquiry": self._num_inquiries, "final": final}
        self._guests.tell(look, [other for other in self._guests.members if other is not guest])

    def _conclude(self) -> None:
        inquiry = self._inquiry
        if inquiry is None:
            return
        found = inquiry.conclude({guest.key: guest.name for guest in self._guests.members}, time.monotonic())
        if found is None:
            return
        self._inquiry = None
        if isinstance(found, Standstill):
            self._guests.tell({"kind": "standstill", "text": found.text})
        elif found.key in self._guests.by_key and (inquiry.final or isinstance(found, Blame)):
            failure = found.failure if isinstance(found, Blame) else None
            self._guests.send(self._guests.by_key[found.key], {"kind": "hung", "failure": failure})

    def _tick(self) -> None:
        self._guests.tick(time.monotonic())
        self._conclude()


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
        peer = Peer(socket.create_connection(address, timeout=_CONNECT_S))
        self._link = Link(peer, address[0], secret, loop, {"kind": "join", "name": socket.gethostname()})
        self._link.on_message = self._hear

    def close(self) -> None:
        """Close the connection to the first node."""
        self._link.close()

    def failing(self) -> None:
        """Do nothing: Slurm ends the other nodes when this one ends."""

    def leaving(self, number: int) -> None:
        """Do nothing: Slurm has signalled all nodes."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask all nodes; if the first node is gone, judge by this node's ranks alone."""
        if not self._link.lost:
            self._link.send({"kind": "still", **question})
            return
        alone = Inquiry(
            key=0,
            round=0,
            final=bool(question["final"]),
            limit_s=float(question["limit_s"]),
            reason=str(question["reason"]),
            begun_s=time.monotonic(),
            views={0: view_from(question)},
        )
        found = alone.conclude({0: socket.gethostname()}, time.monotonic())
        if isinstance(found, Standstill):
            self._tell_standstill(found.text)
        elif alone.final and self.attempt is not None:
            self.attempt.blame(failure_from(found.failure if isinstance(found, Blame) else None))

    def _hear(self) -> None:
        messages, attempt = self._link.messages, self.attempt
        while messages:
            message = messages.popleft()
            if message["kind"] == "look":
                view: Mapping[str, Any] = {"quiet_s": None, "missing": [], "ranks": []}
                if attempt is not None:
                    view = attempt.view(final=bool(message["final"]))
                self._link.send({"kind": "seen", "inquiry": message["inquiry"], **view})
            elif message["kind"] == "standstill":
                if self._node == 0:  # once is enough: srun collects the output of all nodes
                    self._tell_standstill(str(message["text"]))
                elif attempt is not None:
                    attempt.note_standstill()
            elif message["kind"] == "hung" and attempt is not None:
                attempt.blame(failure_from(message["failure"]))

    def _tell_standstill(self, text: str) -> None:
        tell(self._console, text)
        keep_standstill(self._run_dir, text, self._console.say)
        if self.attempt is not None:
            self.attempt.note_standstill()
