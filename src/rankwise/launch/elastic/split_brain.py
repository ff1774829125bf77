"""Several rendezvous of one run, after a network split: they look for each other, and the nodes of one join another."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rankwise._process.addresses import family_of
from rankwise.launch.elastic.connection import Client
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.local.loop import Loop

_AGAIN_S = 2.0
_ANSWER_S = 5.0


class Priority(NamedTuple):
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


class SplitBrain:
    """Asks the other hosts of the list every other second whether they hold a rendezvous of this run, and answers them.

    It never blocks: it opens and closes connections inside the supervisor's loop.

    `hosts` are those of the list, in its order, with their addresses; those without any are skipped. `moved` is called
    once, with the host of a rendezvous that ranks higher.
    """

    def __init__(
        self,
        hosts: Mapping[str, Sequence[str]],
        host: str,
        port: int,
        token: str,
        loop: Loop,
        *,
        run: str,
        membership: Membership,
        moved: Callable[[str], object],
    ) -> None:
        self._others = {name: list(addresses) for name, addresses in hosts.items() if name != host and addresses}
        self._host, self._place, self._port, self._token, self._loop = host, -list(hosts).index(host), port, token, loop
        self._run, self._membership, self._moved = run, membership, moved
        self._id = secrets.token_hex(8)
        self._asked: dict[str, Client] = {}
        loop.every(_AGAIN_S, self._ask_all)

    def close(self) -> None:
        """Stop looking."""
        self._loop.remove_timer(self._ask_all)
        for client in self._asked.values():
            client.close()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Compare with a rendezvous that asks; return the answer, None if it gets none."""
        if message.get("run") != self._run or self._membership.phase == "over":
            return None
        own = self._priority()
        self._compare(message)
        return {"kind": "priority", "priority": own}

    def _priority(self) -> Priority:
        members = self._membership
        at_work = len(members.round) if members.phase in {"running", "stopping"} else 0
        return Priority(at_work=at_work, number=members.number, place=self._place, host=self._host, id=self._id)

    def _compare(self, message: Mapping[str, Any]) -> None:
        """Compare with another rendezvous of this run: if the other one ranks higher, all nodes go there."""
        other = Priority(*message["priority"])
        if other.id != self._id and other > self._priority() and self._membership.phase != "over":
            self._moved(other.host)

    def _ask_all(self) -> None:
        now = time.monotonic()
        for name, client in list(self._asked.items()):
            if now > client.begun_s + _ANSWER_S:
                self._drop(name)
        for name, addresses in self._others.items():
            if name not in self._asked:
                address = addresses.pop(0)
                addresses.append(address)
                connecting = socket.socket(family_of(address), socket.SOCK_STREAM)
                connecting.setblocking(False)  # noqa: FBT003
                connecting.connect_ex((address, self._port))  # reading shows the result: a rendezvous sends first
                self._asked[name] = Client(
                    connecting,
                    name,
                    self._token,
                    self._loop,
                    lambda: {"kind": "probe", "run": self._run, "priority": self._priority()},
                    obey=partial(self._receive, name),
                    ended=partial(self._drop, name),
                )

    def _receive(self, name: str, message: Mapping[str, Any]) -> None:
        self._drop(name)
        if message.get("kind") == "priority":
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._compare(message)

    def _drop(self, name: str) -> None:
        self._asked.pop(name).close()
