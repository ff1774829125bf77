"""Network addresses: which belong to this machine, on which interface, and which machines can reach them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_ELSEWHERE = "192.0.2.1"  # reserved for documentation, so it takes the default route; nothing is sent


def resolve(host: str) -> list[str]:
    """Return the addresses of a host, [] if its name is unknown.

    A machine often resolves its own name to 127.0.1.1. Then return the source address of its default route instead,
    which other machines can reach.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if all(map(is_loopback, addresses)) and host != "localhost" and not host.startswith("127.") and host != "::1":
        towards = address_towards()
        return [towards] if towards else addresses
    return addresses


def address_towards(host: str = _ELSEWHERE) -> str:
    """Return the source address of packets to a host (or on the default route), "" without a way; sends nothing."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    return ""


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of an IPv4 or IPv6 address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_own(address: str) -> bool:
    """Whether an address belongs to this machine."""
    with contextlib.suppress(OSError), socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def is_loopback(address: str) -> bool:
    """Whether an address is reachable from this machine only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_public(address: str) -> bool:
    """Whether an address is reachable from the Internet."""
    return ipaddress.ip_address(address.partition("%")[0]).is_global


def interface_of(address: str) -> str:
    """Return the name of the interface that has an IPv4 address, "" if unknown."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), "")


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, "" if it has none or it is unknown."""
    with contextlib.suppress(OSError, ImportError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl  # exists on Linux and macOS only

        packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(packed[20:24])
    return ""
