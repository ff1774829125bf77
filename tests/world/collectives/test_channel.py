"""What keeps a process group alive; messages over keys: threads stand for ranks, a dict for JAX's coordinator."""

import gc
import pickle
import threading
import weakref
from datetime import timedelta

import pytest
import torch.distributed as dist

from rankwise.errors import WorldError
from rankwise.world import bind
from rankwise.world.collectives.channel import KeyChannel


def test_a_world_lets_go_of_its_group_with_the_block(monkeypatch):
    """The group is freed while the interpreter lives, though the world is still referred to; calls say it was left.

    Freed later, it meets its own threads in the interpreter's finalisation, and the process may end with an abort.
    """
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with bind(device="cpu", always_group=True) as world:
        group = weakref.ref(dist.group.WORLD)
        assert world.all_reduce(3) == 3
        assert world.channel.group is group()
    gc.collect()
    assert group() is None
    with pytest.raises(WorldError, match="it was left"):
        world.all_reduce(3)


class Coordinator:
    """As much of JAX's client as the channel needs."""

    def __init__(self):
        self.values, self.changed, self.num_asked = {}, threading.Condition(), 0

    def key_value_set_bytes(self, key, value):
        with self.changed:
            self.num_asked += 1
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key, patience_ms):
        with self.changed:
            self.num_asked += 1
            if not self.changed.wait_for(lambda: key in self.values, patience_ms / 1000):
                raise RuntimeError(f"timed out with key: {key}")
            return self.values[key]

    def key_value_dir_get_bytes(self, folder):
        with self.changed:
            self.num_asked += 1
            return [(key, value) for key, value in self.values.items() if key.startswith(f"{folder}/")]

    def key_value_delete(self, key):
        with self.changed:
            self.num_asked += 1
            del self.values[key]


def channel(rank, client, patience_s=30.0, world_size=3):
    return KeyChannel(client, "x", rank, world_size, timedelta(seconds=patience_s))


def test_every_rank_gets_all_messages():
    """By rank, again and again, and what was read by all is deleted: the coordinator keeps two rounds at most."""
    client, found, kept = Coordinator(), {}, []

    def one(rank):
        mine = channel(rank, client)
        found[rank] = []
        for number in range(50):
            found[rank].append(mine.exchange(f"{number} of {rank}".encode()))
            kept.append(len(client.values))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found[0] == found[1] == found[2]
    assert found[0][49] == [b"49 of 0", b"49 of 1", b"49 of 2"]
    assert max(kept) <= 3 * 3
    assert len(client.values) == 3


@pytest.mark.parametrize("rank", [0, 1, 999])
def test_it_costs_a_few_questions_at_any_number_of_ranks(rank):
    """Put, wait for one, take all that are there, delete; a rank that comes behind that costs a wait more."""
    client = Coordinator()
    client.values = {f"x/1/{other}": b"%d" % other for other in range(1000) if other != rank}
    mine = channel(rank, client, world_size=1000)
    assert mine.exchange(b"%d" % rank) == [b"%d" % other for other in range(1000)]
    assert client.num_asked == 3
    client.values = {f"x/1/{rank}": b""} | {f"x/2/{other}": b"" for other in range(1000) if other not in (rank, 500)}
    taken = client.key_value_dir_get_bytes

    def late(folder):
        found = taken(folder)
        client.values["x/2/500"] = b""
        return found

    client.num_asked, client.key_value_dir_get_bytes = 0, late
    assert mine.exchange(b"") == [b""] * 1000
    assert client.num_asked == 5


def test_a_late_rank_is_an_error():
    """Nobody waits longer than the timeout."""
    with pytest.raises(RuntimeError, match="timed out with key: x/1/1"):
        channel(0, Coordinator(), 0.01).exchange(b"")


def test_it_stays_in_its_process():
    """A worker process cannot exchange messages for the rank."""
    with pytest.raises(WorldError, match="cannot be sent to another process"):
        pickle.dumps(channel(0, None))
