"""The address where rank 0 serves the others: who listens on it, when, and whether the Internet reaches it."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from datetime import timedelta

from rankwise._process.addresses import address_towards, is_own, is_public, resolve
from rankwise._process.place import Place, loopback_address

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.002, 0.05
_TRY_S = 1.0

_log = logging.getLogger("rankwise.world")
_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Warn once per process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning(text)


def listening_address(host: str) -> str:
    """Return the single address on which a server for the ranks listens, "" for all addresses of this machine.

    A name except localhost may resolve to another address on other machines, so for it the server listens on all.
    """
    with contextlib.suppress(ValueError):  # a name
        ipaddress.ip_address(host)
        if is_own(host):  # it is not if it reaches this machine through address translation
            return host
    return loopback_address(host)


def await_listener(host: str, port: int, limit_s: float) -> None:
    """Return once something listens there, or after the limit; nothing is sent.

    If torch's TCPStore client starts before the server, it pauses at least half a second before it tries again. With
    ranks that start together this happens in every fifth start. Only a refused connection is tried again; other errors
    (an unknown name, a filtered port) are left to torch.

    Args:
        host: host of rank 0.
        port: port of its store.
        limit_s: seconds to wait; torch has its own limit afterwards.
    """
    deadline, pause = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=min(_TRY_S, limit_s)) as found:
                if found.getsockname() != found.getpeername():  # else it connected to itself
                    return
        except ConnectionRefusedError:
            pass
        except OSError:
            return
        if time.monotonic() + pause > deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE_S)


def store_error(place: Place, timeout: timedelta) -> str:
    """Return the error text for a rank that cannot serve or reach the store."""
    where = f"{place.master_addr}:{place.master_port}"
    if place.rank == 0 and not place.agent_store:
        return f"rank 0 cannot serve the store at {where}: if the port is taken, choose another MASTER_PORT"
    return (
        f"rank {place.rank} could not reach the store at {where} within {timeout.total_seconds():g} s: check that rank "
        "0 runs there, that the name resolves on this machine and that no firewall blocks the port"
    )


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
    warn_once(
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
    addresses = [one] if one else filter(None, [*resolve(host), address_towards()])
    return next((address for address in addresses if is_public(address) and listening_address(address)), "")
