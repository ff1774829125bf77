"""A word about ports that the whole Internet may try."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from rankwise.world.factory import say_once
from rankwise.world.small_store import listening_address

__all__ = ["public_address", "warn_of_public"]

_ELSEWHERE = "192.0.2.1"  # of no machine: its route is the default one; nothing is sent


def warn_of_public(host: str, what: str) -> None:
    """Say it, once, if what listens for the ranks can be tried by everybody; to be called by who serves.

    Args:
        host: by which the ranks know this machine.
        what: that listens there.
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
        host: by which the ranks know this machine; a name is listened for on all addresses, so that those count which
            the name has here, and the one from which this machine talks to others.
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
