"""A node asks which rank of all nodes blocks its own: the first node, whose `Server` decides for all."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.launch.elastic.connection import Client
from rankwise.launch.elastic.hang import HangDetector, obey_inquiry
from rankwise.launch.failures.record import keep_standstill
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.loop import Loop

_CONNECT_S = 10.0


class HangClient(Client):
    """Implements `OtherNodes` on each node of an allocation. If one node fails, Slurm itself ends the others.

    The first node reports and records a standstill.

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
        super().__init__(connected, address[0], secret, loop, lambda: join, obey=self._answer)

    def failing(self) -> None:
        """Do nothing: Slurm ends the other nodes when this one ends."""

    def leaving(self, number: int) -> None:
        """Do nothing: Slurm has signalled all nodes."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask all nodes; if the first node is gone, look for the culprit among the ranks here only."""
        self.send({"kind": "still", **question})
        if self.lost:
            alone = HangDetector(lambda: {0: socket.gethostname()})
            alone.home = 0
            for order in alone.ask(0, question, time.monotonic()):
                if order.keys == (0,):
                    self._answer(order.message)

    def _answer(self, message: Mapping[str, Any]) -> None:
        obey_inquiry(message, self.attempt, send=self.send, tell=self._tell_standstill)

    def _tell_standstill(self, text: str) -> None:
        # srun collects the output of all nodes: the first node alone tells, if it is there
        if self._node == 0 or self.lost:
            log_text(self._console, text)
            keep_standstill(self._run_dir, text, self._console.log)
