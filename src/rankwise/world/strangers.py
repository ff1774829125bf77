"""Warn about ports that are reachable from the Internet."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from rankwise.world.factory import say_once
from rankwise.world.small_store import listening_address

__all__ = ["public_address", "warn_of_public"]

_ELSEWHERE = "192.0.2.1"  # reserved for documentation, so it takes the default route; nothing is sent


def warn_of_public(host: str, what: str) -> None:
    """Warn once if a server for the ranks is reachable from the Internet; the serving rank calls this.

    Args:
        host: host name or address by which the ranks reach this machine.
        what: name of the server, for the message.
    """
    found = public_address(host)
    if not found:
        return
    where = "" if listening_address(host) else f" (among all addresses of this machine, as {host} is a name)"
    say_once(
        f"{what} listens on {found}, a public address{where}: the whole Internet may try its port, and what the ranks "
        "exchange is not encrypted; set MASTER_ADDR to an address of a network that you trust"
    )


def public_address(host: str) -> str:
    """Return the public address at which a server of this machine can be reached, "" if none is known.

    Args:
        host: host name or address by which the ranks reach this machine. For a name, the server listens on all
            addresses: check the name's addresses and the source address of this machine's default route.
    """
    one = listening_address(host)
    addresses = [one] if one else [*_resolved(host), _outgoing()]
    return next((address for address in addresses if _is_public(address) and listening_address(address)), "")


def _resolved(host: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    return []


def _outgoing() -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    return ""


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_global
    except ValueError:
        return False
