"""Choose the address where the processes of a JAX program meet: a new free port of rank 0, held until JAX uses it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

from rankwise._process.place import Place
from rankwise.world.addresses import listening_address, warn_of_public

__all__ = ["Coordinator", "choose_coordinator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """An address for JAX's coordinator, held by rank 0.

    Attributes:
        address: "host:port" for all ranks.
        held: socket that reserves the port; JAX's server can still listen on it.
    """

    address: str
    held: socket.socket

    @property
    def bind_address(self) -> str:
        """The address on which the server listens: that of `address`; all of this machine's if `address` has a name."""
        host, _, port = self.address.rpartition(":")
        own = listening_address(host.strip("[]"))
        return f"[{own}]:{port}" if ":" in own else f"{own or '[::]'}:{port}"


def choose_coordinator(place: Place) -> Coordinator:
    """Return an address on this machine; only rank 0 calls this.

    The host is MASTER_ADDR. If that is another machine (for example an agent's), it is the source address of this
    machine towards that one.
    """
    host = _own_host(place.master_addr) if place.master_addr else socket.gethostname()
    held = _hold(listening_address(host))
    warn_of_public(host, "JAX's coordinator")
    name = f"[{host}]" if ":" in host else host
    return Coordinator(address=f"{name}:{held.getsockname()[1]}", held=held)


def _own_host(known: str) -> str:
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(known, 0, type=socket.SOCK_DGRAM):
            if _is_own(family, kind, address):
                return known
            with socket.socket(family, kind) as towards:
                towards.connect((address[0], 9))  # connecting a datagram socket sends nothing
                return str(towards.getsockname()[0])
    return socket.gethostname()


def _is_own(family: int, kind: int, address: object) -> bool:
    with socket.socket(family, kind) as trial:
        try:
            trial.bind(address)  # type: ignore[arg-type]
        except OSError:
            return False
    return True


def _hold(host: str) -> socket.socket:
    """Bind a free port. With SO_REUSEPORT, which JAX's server sets too, that server can listen on the held port."""
    everywhere = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if everywhere or ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if everywhere:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    held.bind((host, 0))
    return held
