"""Addresses of this machine."""

import socket

from rankwise._process import addresses


def test_a_host_that_only_ipv6_reaches(monkeypatch):
    """The source address is of the family of the host's addresses."""
    found = [(socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 9, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert addresses.address_towards("node01.invalid") in {"::1", ""}  # "": no IPv6 here
    found[0] = (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 9))
    assert addresses.address_towards("node01.invalid") == "127.0.0.1"
