"""Ranks that talk over a store of their own; threads stand for them here."""

import threading
from datetime import timedelta

import pytest

from rankwise._process.place import Place
from rankwise.errors import DataError, DesyncError, WorldError
from rankwise.testing.held_ports import hold_port
from rankwise.testing.ranks import run_over_store
from rankwise.world import binding, store_channel
from rankwise.world.collectives.channel import KeyChannel
from rankwise.world.rendezvous.protocol import SignedStore
from rankwise.world.rendezvous.small_store import KeyValues, SmallStore
from rankwise.world.store_channel import StoreKeys, store_world


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Nobody waits a second to look at whether another is gone."""
    monkeypatch.setattr(store_channel, "_POLL_S", 0.05)


def test_objects_travel_and_the_port_is_free_again():
    """Small ones and large ones, in every collective of objects; the next meeting may be at the same port at once."""
    port = hold_port()

    def body(world):
        large = bytes(100_000) + bytes([world.rank])
        assert world.all_gather_object(large) == [bytes(100_000) + bytes([rank]) for rank in range(3)]
        assert world.from_main(lambda: {"rank": world.rank}) == {"rank": 0}
        assert world.broadcast_object(world.rank, 2) == 2
        world.barrier()
        return world.gather_object(world.rank)

    for _ in range(3):
        assert run_over_store(3, body, port) == [[0, 1, 2], None, None]


def test_messages_that_are_there_come_together(monkeypatch):
    """A rank asks for one message and is given the others with the next answer; a stranger's is refused there, too."""
    asked, ask = [], SmallStore._request

    def noted(store, *question):
        asked.append(question[0])
        return ask(store, *question)

    def body(world):
        world.barrier()
        if world.rank == 2:
            assert world.channel.client.key_value_dir_get_bytes(f"{world.channel.name}/none") == []
            world.channel.client._store.set(f"{world.channel.name}/strange/1", "AAAA")
            with pytest.raises(RuntimeError, match="is from another job"):
                world.channel.client.key_value_dir_get_bytes(f"{world.channel.name}/strange")
        return world.all_gather_object(world.rank)

    monkeypatch.setattr(SmallStore, "_request", noted)
    assert run_over_store(6, body) == [[*range(6)]] * 6
    assert "under" in asked


def test_an_error_of_one_rank_is_raised_on_all():
    """Also by those that wait in another collective; afterwards they part without a wait."""

    def body(world):
        if world.rank == 1:
            world.raise_together(DataError("a.h5ad cannot be read"))
        return world.all_gather_object(1)

    ends = run_over_store(3, body)
    assert [type(end) for end in ends] == [DesyncError, DataError, DesyncError]
    assert all(str(end).endswith("a.h5ad cannot be read") for end in ends)


def test_a_rank_that_dies_is_named():
    """Its connection ends without a word: the others do not wait for the time to be up."""

    def body(world):
        world.barrier()
        if world.rank == 1:
            world.channel.client._store.close()
            return "dead"
        return world.all_gather_object(1)

    first, dead, third = run_over_store(3, body)
    assert dead == "dead"
    for end in (first, third):
        assert isinstance(end, WorldError)
        assert "lost the other ranks in all_gather_object" in str(end)
        assert "rank 1 has ended without a message" in str(end)


def test_a_rank_of_a_subgroup_that_dies_is_named_as_the_job_does():
    """Rank 1 of the subgroup is rank 2 of the job: the store tells of the death of that one, and not of another's."""

    def body(world):
        part = world.subgroup([0, 2])
        world.barrier()
        if world.rank:
            world.channel.client._store.close()
            return "dead"
        return part.all_gather_object(1)

    end = run_over_store(3, body)[0]
    assert isinstance(end, WorldError)
    assert "rank 2 has ended without a message" in str(end)


def test_what_was_sent_before_the_end_is_heard():
    """A rank that has sent its message and ended is not taken for one that never sent it."""
    store = LikeAStore()
    keys = StoreKeys(store, "p", "secret")
    keys._reports_disconnects = True
    keys.key_value_set_bytes("p/talk/1/1", b"\x00 bytes \xff")
    store.set(keys.gone(1), "")
    assert keys.blocking_key_value_get_bytes("p/talk/1/1", 10_000) == b"\x00 bytes \xff"
    with pytest.raises(RuntimeError, match="rank 1 has ended without a message"):
        keys.blocking_key_value_get_bytes("p/talk/2/1", 10_000)
    with pytest.raises(RuntimeError, match=r"timed out: rank 2 has sent nothing for 0\.01 s"):
        keys.blocking_key_value_get_bytes("p/talk/2/2", 10)


class LikeAStore(KeyValues):
    """Keys and values with the calls of a store."""

    def get(self, key):
        return super().get(key).encode()

    def wait(self, keys, patience):
        super().wait(keys, patience.total_seconds())


def test_a_message_of_a_stranger_is_refused():
    """Who does not know the secret of the job cannot let a rank unpickle anything."""
    store = LikeAStore()
    SignedStore(store, "guessed").put("p/talk/1/1", "AAAA")
    with pytest.raises(RuntimeError, match="is from another job"):
        StoreKeys(store, "p", "secret").blocking_key_value_get_bytes("p/talk/1/1", 10)


def test_a_store_of_torch_carries_them_too():
    """Under torchrun the agent keeps the store at the address of the ranks."""
    import torch.distributed as dist

    store, found = dist.HashStore(), {}

    def one(rank):
        channel = KeyChannel(StoreKeys(store, "p", ""), "p/talk", rank, 2, timedelta(seconds=30))
        found[rank] = [channel.exchange(f"{number} of {rank}".encode()) for number in range(5)]

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found[0] == found[1] == [[f"{number} of {rank}".encode() for rank in range(2)] for number in range(5)]
    with pytest.raises(RuntimeError):
        StoreKeys(store, "p", "").blocking_key_value_get_bytes("p/talk/9/1", 10)


def test_the_store_that_bind_keeps_is_used(monkeypatch):
    """Its port is taken to the end of the process: ranks that were bound before meet in torch's store once more."""
    import torch.distributed as dist

    store, port = dist.HashStore(), hold_port()
    places = [Place(rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port) for rank in (0, 1)]
    monkeypatch.setattr(binding, "_stores", {binding._key(place): store for place in places})
    assert run_over_store(2, lambda world: world.all_gather_object(world.rank), port) == [[0, 1], [0, 1]]
    assert store.num_keys() > 0


def test_a_place_without_an_address_is_refused():
    """Nobody could meet."""
    with pytest.raises(WorldError, match="rank 1 of 2 does not know where the ranks meet: set MASTER_ADDR"):
        store_world(Place(rank=1, world_size=2)).__enter__()
