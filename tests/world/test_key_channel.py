"""Messages over keys: threads stand for ranks, a dict for JAX's coordinator."""

import pickle
import threading
from datetime import timedelta

import pytest

from rankwise.errors import WorldError
from rankwise.world.key_channel import KeyChannel


class Coordinator:
    """As much of JAX's client as the channel needs."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def key_value_set_bytes(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key, patience_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, patience_ms / 1000):
                raise RuntimeError(f"timed out with key: {key}")
            return self.values[key]

    def key_value_delete(self, key):
        with self.changed:
            del self.values[key]


def channel(rank, client, patience_s=30.0):
    return KeyChannel(client, "x", rank, 3, timedelta(seconds=patience_s))


def test_every_rank_gets_all_messages():
    """By rank, again and again, and what was read by all is deleted: the coordinator keeps two rounds at most."""
    client, found, kept = Coordinator(), {}, []

    def one(rank):
        mine = channel(rank, client)
        found[rank] = []
        for number in range(50):
            found[rank].append(mine.swap(f"{number} of {rank}".encode()))
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


def test_a_late_rank_is_an_error():
    """Nobody waits longer than the timeout."""
    with pytest.raises(RuntimeError, match="timed out with key: x/1/1"):
        channel(0, Coordinator(), 0.01).swap(b"")


def test_it_stays_in_its_process():
    """A worker process cannot swap messages for the rank."""
    with pytest.raises(WorldError, match="cannot travel to another process"):
        pickle.dumps(channel(0, None))
