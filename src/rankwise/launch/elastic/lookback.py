"""Look for other rendezvous of the same run while holding one: if two find each other, one joins the other."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rankwise.launch.elastic.peer import Peer, PeerGone
from rankwise.launch.elastic.seal import HELLO, NODE, Seal
from rankwise.launch.local.loop import Loop

__all__ = ["LookBack", "Standing", "standing_from"]

_AGAIN_S = 2.0
_ANSWER_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Standing:
    """Ranks two rendezvous of one run, compared field by field; the greater one stays.

    Attributes:
        at_work: number of nodes with running ranks.
        number: number of its next round; a greater one has seen more of the run.
        place: position of its host in the list, negated: 0 for the first, -1 for the next; unique.
        host: its host's name in the list.
        id: id of the rendezvous, so that one that finds itself under another host name ignores that.
    """

    at_work: int
    number: int
    place: int
    host: str
    id: str


def standing_from(message: Mapping[str, Any]) -> Standing:
    """Read a standing.

    Raises:
        KeyError: a field is missing.
        TypeError: a field has the wrong type.
        ValueError: a field has an invalid value.
    """
    numbers = {name: int(message[name]) for name in ("at_work", "number", "place")}
    return Standing(**numbers, host=str(message["host"]), id=str(message["id"]))


class LookBack:
    """Asks the other hosts of the list every other second whether they hold a rendezvous of this run.

    It never blocks: it opens and closes connections inside the supervisor's loop.

    Args:
        hosts: addresses of the other hosts; hosts without any are skipped.
        port: port of the rendezvous.
        token: the run's secret.
        loop: the event loop.
        question: returns the message to send, with this rendezvous's own standing.
        found: called with the standing of another rendezvous.
    """

    def __init__(
        self,
        hosts: Sequence[Sequence[str]],
        port: int,
        token: str,
        loop: Loop,
        *,
        question: Callable[[], Mapping[str, Any]],
        found: Callable[[Standing], object],
    ) -> None:
        self._turns = [list(addresses) for addresses in hosts if addresses]
        self._port, self._token, self._loop, self._question, self._found = port, token, loop, question, found
        self._asked: list[_Asked] = []
        loop.every(_AGAIN_S, self._ask_all)

    def close(self) -> None:
        """Stop looking."""
        self._loop.forget_every(self._ask_all)
        for asked in list(self._asked):
            self._drop(asked)

    def _ask_all(self) -> None:
        now = time.monotonic()
        for asked in [asked for asked in self._asked if now > asked.peer.begun_s + _ANSWER_S]:
            self._drop(asked)
        waiting = [asked.turn for asked in self._asked]
        for number, addresses in enumerate(self._turns):
            if number not in waiting:
                addresses.append(addresses.pop(0))
                self._ask(number, addresses[-1])

    def _ask(self, turn: int, address: str) -> None:
        connecting = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        connecting.setblocking(False)  # noqa: FBT003
        connecting.connect_ex((address, self._port))  # reading shows the result: a rendezvous sends first
        asked = _Asked(turn=turn, peer=Peer(connecting))
        self._asked.append(asked)
        self._loop.watch(asked.peer.fileno(), partial(self._read, asked))

    def _read(self, asked: _Asked) -> None:
        try:
            for line in asked.peer.read():
                if asked not in self._asked:
                    return
                self._take(asked, line)
        except (PeerGone, json.JSONDecodeError, KeyError, TypeError, ValueError):
            self._drop(asked)

    def _take(self, asked: _Asked, line: bytes) -> None:
        if asked.seal is None:
            if not line.startswith(HELLO):
                self._drop(asked)
                return
            nonce = secrets.token_hex(16)
            nonces = f"{line[len(HELLO) :].decode(errors='replace')} {nonce}"
            asked.seal = Seal(self._token, nonces, ours="node", theirs="rendezvous")
            asked.peer.write(NODE + nonce.encode() + b"\n")
            asked.peer.write(asked.seal.line(self._question()))
            return
        message = asked.seal.message(line)
        self._drop(asked)
        if message is not None and message.get("kind") == "standing":
            self._found(standing_from(message))

    def _drop(self, asked: _Asked) -> None:
        if asked in self._asked:
            self._asked.remove(asked)
            self._loop.forget(asked.peer.fileno())
            asked.peer.close()


@dataclass(kw_only=True, slots=True, eq=False)
class _Asked:
    turn: int
    peer: Peer
    seal: Seal | None = None
