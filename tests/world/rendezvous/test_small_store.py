"""The store of ranks that meet without torch."""

import contextlib
import io
import socket
import threading
from datetime import timedelta

import pytest

from rankwise._process.place import Place
from rankwise.errors import WorldError
from rankwise.testing.held_ports import hold_port
from rankwise.world.rendezvous import small_store
from rankwise.world.rendezvous.protocol import RankInfo, rendezvous
from rankwise.world.rendezvous.small_store import KeyValues, SmallStore, StoreServer, _Connection, open_small_store


@pytest.fixture
def stores():
    """Two views of one store."""
    server = StoreServer("localhost", 0)
    opened = [SmallStore(socket.create_connection(server.server_address), server if one else None) for one in (0, 1)]
    yield opened
    for store in opened:
        store.close()


def test_what_one_rank_puts_another_gets(stores):
    """Text by key, with line breaks and other alphabets; counts add up."""
    first, second = stores
    first.set("a", "two\nlines, été")
    assert second.get("a").decode() == "two\nlines, été"
    assert [first.add("n", 1), second.add("n", 2), first.add("n", 0)] == [1, 3, 3]
    assert second.check(["a", "n"])
    assert not second.check(["a", "b"])


def test_a_key_is_waited_for(stores):
    """The wait ends when another rank puts the key, and with an error when nobody does."""
    first, second = stores
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(second.wait(["late"], timedelta(seconds=30))))
    waiting.start()
    first.set("late", "here")
    waiting.join(30)
    assert heard == [None]
    with pytest.raises(OSError, match=r"never did not arrive within 0\.01 s"):
        first.wait(["never"], timedelta(seconds=0.01))


def test_a_rank_is_counted_before_its_card_is_there(stores, monkeypatch):
    """The one that keeps the store waits for the info of a rank that has only been counted so far."""
    first, second = stores
    asked, met = threading.Event(), []
    wait, put = first.wait, second.set

    def waited(keys, patience):
        asked.set()
        wait(keys, patience)

    def late(key, value):
        if "/info/" in key:
            assert asked.wait(30)
        put(key, value)

    monkeypatch.setattr(first, "wait", waited)
    monkeypatch.setattr(second, "set", late)
    infos = [RankInfo(rank=rank, world_size=2, host="here", mask="0", place=f"process {rank}") for rank in (0, 1)]
    other = threading.Thread(target=lambda: met.append(rendezvous(second, infos[1], timeout=timedelta(seconds=30))))
    other.start()
    layout = rendezvous(first, infos[0], timeout=timedelta(seconds=30))
    other.join(30)
    assert met == [layout]


def test_a_rank_that_dies_before_its_card_is_there_is_missing(stores, monkeypatch):
    """It was counted and never said who it is: the message names the one that did not come."""
    first, second = stores
    put = second.set

    def dies(key, value):
        if "/info/" in key:
            raise ConnectionAbortedError
        put(key, value)

    monkeypatch.setattr(second, "set", dies)
    infos = [RankInfo(rank=rank, world_size=2, host="here", place=f"process {rank}") for rank in (0, 1)]

    def rank_1():
        with contextlib.suppress(ConnectionAbortedError):
            rendezvous(second, infos[1], timeout=timedelta(seconds=30))

    other = threading.Thread(target=rank_1)
    other.start()
    with pytest.raises(WorldError, match="1 of 2 ranks did not arrive in time: 1"):
        rendezvous(first, infos[0], timeout=timedelta(seconds=3))
    other.join(30)
    assert not other.is_alive()


def test_a_key_is_forgotten(stores):
    """It is gone for all, and a second time nothing happens."""
    first, second = stores
    first.set("a", "1")
    for store in stores:
        store.delete_key("a")
    assert not second.check(["a"])


def test_a_rank_leaves_word_of_its_end(stores):
    """The store puts the key when the connection ends; one that stopped listening keeps who is there."""
    first, second = stores
    first.set_at_disconnect("gone")
    assert not second.check(["gone"])  # answered, so accepted: one still in the listen queue would be reset
    second.stop_listening()
    assert not second.check(["gone"])
    first.close()
    second.wait(["gone"], timedelta(seconds=30))


def test_mistakes_are_answered(stores):
    """A missing key and an unknown question are errors of the asker; the store goes on."""
    first, _ = stores
    with pytest.raises(OSError, match="KeyError: 'missing'"):
        first.get("missing")
    with pytest.raises(OSError, match="has no '__init__'"):
        first._request("__init__")
    assert first.add("n", 1) == 1


def test_strangers_are_sent_away(stores):
    """A program that speaks something else is hung up on, and the store goes on."""
    first, second = stores
    with socket.create_connection(second._server.server_address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        assert stranger.recv(100) == b""
    with socket.create_connection(second._server.server_address) as stranger:
        stranger.sendall(b'{"set": 1}\n')
        assert b"error" in stranger.recv(100)
    assert first.add("n", 1) == 1


def test_ranks_meet_over_it():
    """The meeting of `bind` works over it, whoever comes first."""
    port, results = hold_port(), {}

    def one(rank):
        place = Place(rank=rank, world_size=2, master_addr="localhost", master_port=port)
        store = open_small_store(place, timedelta(seconds=30))
        results[rank] = (
            rendezvous(store, RankInfo(rank=rank, world_size=2, host="h"), timeout=timedelta(seconds=30)),
            store,
        )

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (first, held), (second, other) = results[0], results[1]
    assert first == second
    assert (first.sharers, second.sharers) == (2, 2)
    other.close()
    held.close()


def test_a_port_that_is_taken_is_named():
    """Rank 0 cannot serve where somebody listens; the message names address and mend."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place(rank=0, world_size=2, master_addr="127.0.0.1", master_port=taken.getsockname()[1])
        with pytest.raises(WorldError, match="if the port is taken, choose another MASTER_PORT"):
            open_small_store(place, timedelta(seconds=1))


def test_a_store_that_is_not_there_is_named():
    """A rank that cannot reach rank 0 says where it looked."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        place = Place(rank=1, world_size=2, master_addr="127.0.0.1", master_port=found.getsockname()[1])
        with pytest.raises(WorldError, match=r"rank 1 could not reach the store at 127\.0\.0\.1"):
            open_small_store(place, timedelta(seconds=0.2))


def test_a_rank_does_not_talk_to_itself(stores, monkeypatch):
    """While nobody listens the system may connect a socket with itself: that is no store, and is tried again."""
    address = stores[1]._server.server_address
    own = socket.socket()
    own.bind(("127.0.0.1", 0))
    own.connect(own.getsockname())
    found = [own, socket.create_connection(address)]
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: found.pop(0))
    place = Place(rank=1, world_size=2, master_addr="127.0.0.1", master_port=address[1])
    store = open_small_store(place, timedelta(seconds=30))
    assert store.add("n", 1) == 1
    assert own.fileno() == -1
    store.close()


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError])
def test_a_rank_that_dies_leaves_no_traceback(stores, error):
    """A connection that is cut before, or in the middle of, an answer ends without an error on rank 0."""

    class Cut(io.BytesIO):
        def write(self, _):
            raise error

    answering = object.__new__(_Connection)
    answering.server = stores[1]._server
    answering.rfile, answering.wfile = io.BytesIO(b'["add", "n", 1]\n["add", "n", 1]\n'), Cut()
    answering.handle()
    assert stores[0].add("n", 0) == 1


def test_a_machine_that_has_gone_is_not_waited_for_for_ever(monkeypatch):
    """It says nothing any more, not even that time is up: the rank that asked sees to that itself."""
    monkeypatch.setattr(small_store, "_GRACE_S", 0.01, raising=False)
    ours, silent = socket.socketpair()
    with silent, contextlib.closing(SmallStore(ours)) as store, pytest.raises(OSError, match="timed out"):
        store.wait(["late"], timedelta(seconds=0.01))


def test_who_has_waited_in_vain_is_forgotten():
    """Rank 0 keeps nothing of a rank that asks again and again; who waits beside it still hears."""
    shelf, heard = KeyValues(), []
    other = threading.Thread(target=lambda: heard.append(shelf.wait(["late"], 60.0)))
    other.start()
    while not shelf._waiting:
        pass
    with pytest.raises(TimeoutError):
        shelf.wait(["late"], 0.0)
    assert len(shelf._waiting["late"]) == 1
    shelf.set("late", "here")
    other.join(60)
    with pytest.raises(TimeoutError):
        shelf.wait(["never"], 0.0)
    assert (heard, shelf._waiting) == ([None], {})
