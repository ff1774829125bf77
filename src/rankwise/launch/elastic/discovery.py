"""Find the rendezvous: a host of the list that answers, or this machine if it is the first that can hold it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rankwise._process.addresses import family_of, is_own, is_public, resolve
from rankwise.errors import LaunchError
from rankwise.launch.elastic.nodes import Nodes
from rankwise.launch.local.loop import ENDING, Loop

_CONNECT_S = 2.0
_AGAIN_S = 0.5
_SAY_AFTER_S = 2.0  # print a message only after this time, as nodes do not start at the same moment
_TAKE_OVER_S = 15.0  # how long to wait for hosts that come before this one in the list


class Found(NamedTuple):
    """Where the rendezvous is.

    Attributes:
        host: its name in the list.
        socket: connected to it, or listening, as this machine shall hold it.
        listens: which of both.
    """

    host: str
    socket: socket.socket
    listens: bool


class StoppedWhileWaiting(Exception):  # noqa: N818  (it is asked for, and caught by the supervisor)
    """A signal asked this node to end before its ranks were started; the argument is its number."""


class Discovery:
    """Looks for the rendezvous of a run.

    It serves the loop meanwhile, for signals and a rendezvous on this machine.

    Attributes:
        known: addresses of the hosts of the list at the last lookup; [] while a name is unknown.
    """

    def __init__(self, nodes: Nodes, loop: Loop, say: Callable[[str], None]) -> None:
        self._nodes, self._loop, self._say = nodes, loop, say
        self._said: set[str] = set()
        self._troubles: dict[str, str] = {}  # why each host was not reached, in the current search
        self.known: dict[str, list[str]] = {host: [] for host in nodes.rendezvous}

    def find(self, *, dead: Sequence[str] = (), again: bool = False, patience_s: float) -> Found:
        """Return the rendezvous, or a place for it on this machine.

        Args:
            dead: hosts whose rendezvous has ended: try them, as they may be back, but do not wait for them.
            again: whether the run has begun; then do not wait for hosts that come before this one.
            patience_s: how long to try.

        Raises:
            LaunchError: no host of the list was reached in time; with the error of each.
            StoppedWhileWaiting: a signal arrived.
        """
        hosts = list(self._nodes.rendezvous)
        begun_s = time.monotonic()
        self._troubles.clear()
        take_over_s = begun_s + (_TAKE_OVER_S / 3 if again else _TAKE_OVER_S)
        while True:
            for number in range(len(hosts)):
                first = all(other in dead for other in hosts[:number])
                found = self._try(hosts, number, begun_s if first else take_over_s)
                if found is not None:
                    return found
            now = time.monotonic()
            if now > begun_s + _SAY_AFTER_S:
                for host, why in self._troubles.items():
                    if why not in self._said:
                        self._said.add(why)
                        self._say(f"waiting for the rendezvous at {host}: {why}")
            if now > begun_s + patience_s:
                said = "; ".join(f"{host}: {why}" for host, why in self._troubles.items())
                raise LaunchError(f"no rendezvous after {patience_s:g} s: {said}")
            while time.monotonic() < now + _AGAIN_S:
                self.pause(_AGAIN_S)

    def pause(self, seconds: float) -> None:
        """Serve the loop until an event, for at most so many seconds.

        Raises:
            StoppedWhileWaiting: a signal arrived.
        """
        self._loop.step(seconds)
        while self._loop.signals:
            number = self._loop.signals.popleft()
            if number in ENDING:
                raise StoppedWhileWaiting(number)

    def _try(self, hosts: list[str], number: int, take_over_s: float) -> Found | None:
        host = hosts[number]
        addresses = self._resolve(host)
        own = [address for address in addresses if is_own(address)]
        if not own:
            return self._connect(host, addresses)
        # a host that comes back after a loss joins the run where it continued
        for other in hosts[:number] + hosts[number + 1 :]:
            found = self._connect(other, self._resolve(other))
            if found is not None:
                return found
        if time.monotonic() < take_over_s:
            return None
        listener = _listen(own[0], self._nodes.port)
        if listener is None:
            return self._connect(host, own)
        if number:
            self._say(f"{', '.join(hosts[:number])} cannot be reached: the rendezvous is here, at {host}")
        if is_public(own[0]):
            self._say(
                f"the rendezvous listens on {own[0]}, a public address: its port is reachable from the "
                "Internet, only the token protects it, and the traffic of the ranks is not encrypted"
            )
        return Found(host, listener, listens=True)

    def _resolve(self, host: str) -> list[str]:
        self.known[host] = resolve(host) or self.known[host]
        return self.known[host]

    def _connect(self, host: str, addresses: list[str]) -> Found | None:
        port = self._nodes.port
        if not addresses:
            self._troubles[host] = "this name is not known here (--rdzv, or the hosts file)"
        for address in addresses:
            try:
                return Found(host, socket.create_connection((address, port), _CONNECT_S), listens=False)
            except TimeoutError:
                self._troubles[host] = (
                    f"no answer from {address} port {port}: a firewall drops it, or the machine or link is down"
                )
            except ConnectionRefusedError:
                self._troubles[host] = (
                    f"{address} refuses port {port}: nothing listens there yet, or a firewall refuses (is it started "
                    "there, with the same --rdzv?)"
                )
            except OSError as error:
                self._troubles[host] = f"{address} port {port}: {error.strerror}"
        return None


def _listen(address: str, port: int) -> socket.socket | None:
    """Listen on one address; None if it is in use, as there may be several nodes on this machine."""
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        return None
    return listener
