"""Addresses that the whole Internet may try are told of."""

import logging
import socket

import pytest

from rankwise.world.rendezvous import addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.1.2.3", "::1"])
def test_private_addresses_are_quiet(host, caplog):
    """One machine, and networks that are nobody else's, need no word."""
    addresses.warn_of_public(host, "torch's store")
    assert caplog.text == ""


def test_a_public_address_is_told_once(monkeypatch, caplog):
    """An address, and a name behind which there is one: what listens, where, and what to set instead."""
    public = "93.184.215.14"
    monkeypatch.setattr(addresses, "_warned", set())
    monkeypatch.setattr(addresses, "listening_address", lambda host: host if host == public else "")
    monkeypatch.setattr(addresses, "address_towards", lambda: public)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            addresses.warn_of_public(public, "torch's store")
        addresses.warn_of_public("node01.invalid", "JAX's coordinator")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"torch's store listens on {public}, a public address: the whole Internet may try its port")
    assert "set MASTER_ADDR to an address of a network that you trust" in first
    assert second.startswith(f"JAX's coordinator listens on {public}, a public address (among all addresses of this")
    assert "as node01.invalid is a name)" in second


def test_a_public_address_of_another_machine_is_none_of_ours(monkeypatch):
    """A name that leads here by a way that changes addresses: nothing here listens on the public one."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("93.184.215.14", 0))])
    monkeypatch.setattr(addresses, "address_towards", lambda: "10.0.0.2")
    assert addresses.public_address("node01.invalid") == ""
