"""Ranks come to torch's store when it listens, not before: a client that comes too early pauses for half a second."""

import socket
import threading
import time
from unittest.mock import call

import pytest

from rankwise import _torch_hook
from rankwise.testing.held_ports import hold_port
from rankwise.world.rendezvous import addresses
from rankwise.world.rendezvous.addresses import await_listener


@pytest.fixture
def bound():
    """A port that is bound, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def num_visitors(listening):
    """How many have connected, and said nothing."""
    listening.settimeout(0.2)
    count = 0
    while True:
        try:
            visitor, _ = listening.accept()
        except TimeoutError:
            return count
        with visitor:
            assert visitor.recv(1) == b""
        count += 1


def test_it_waits_until_something_listens(bound, monkeypatch):
    """Refused connections are tried again; one that is taken ends it, and says nothing."""
    host, port = bound.getsockname()
    pauses, real, caller = [], time.sleep, threading.current_thread()

    def sleep(seconds):
        if threading.current_thread() is not caller:  # of another test, on its way out
            real(seconds)
            return
        pauses.append(seconds)
        if len(pauses) == 9:
            bound.listen()

    monkeypatch.setattr(addresses.time, "sleep", sleep)
    await_listener(host, port, 60.0)
    assert pauses == sorted(pauses)
    assert (len(pauses), max(pauses)) == (9, 0.05)
    assert num_visitors(bound) == 1


def test_it_ends_in_any_case(bound):
    """Nobody listens until the limit; no such name: torch says what is wrong."""
    begun_s = time.monotonic()
    await_listener(*bound.getsockname(), 0.1)
    assert time.monotonic() - begun_s >= 0.05
    await_listener("no-such-host.invalid", 1, 0.1)


@pytest.mark.parametrize(
    ("call", "variables", "visits"),
    [
        (call(), {}, 1),
        (call("gloo"), {}, 1),
        (call("gloo", "env://", rank=1), {"RANK": "0"}, 1),
        (call(backend="gloo", init_method=None, device_id=None), {}, 1),
        (call(), {"RANK": "0"}, 0),  # it is the one that listens
        (call("gloo", None, None, 2, 0), {}, 0),
        (call("gloo", None, None, 2, 1, object()), {}, 0),  # a store of its own
        (call(init_method="file:///tmp/meeting"), {}, 0),
        (call(), {"RANKWISE_VITALS": None}, 0),  # no launcher of ours
        (call(), {"MASTER_PORT": "port"}, 0),
    ],
)
def test_who_waits_for_rank_0(bound, monkeypatch, call, variables, visits):
    """A rank of ours that joins by the variables, unless it is rank 0."""
    bound.listen()
    host, port = bound.getsockname()
    given = {"RANKWISE_VITALS": "here", "RANK": "1", "MASTER_ADDR": host, "MASTER_PORT": str(port)} | variables
    for name, value in given.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    _torch_hook._await_rank_0(*call.args, **call.kwargs)
    assert num_visitors(bound) == visits


def test_torchs_store_is_not_disturbed(capfd):
    """Ranks that look whether it listens leave it as it was."""
    import torch.distributed as dist

    host, port = "127.0.0.1", hold_port()  # given to nobody else, and no connection has it as its own end
    looking = [threading.Thread(target=await_listener, args=(host, port, 30.0)) for _ in range(4)]
    for thread in looking:
        thread.start()
    store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False)
    for thread in looking:
        thread.join()
    await_listener(host, port, 30.0)
    client = dist.TCPStore(host, port, is_master=False)
    client.set("key", "value")
    assert store.get("key") == b"value"
    assert capfd.readouterr().err == ""
