"""The first meeting over the store: threads stand for ranks, the store is torch's own."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from rankwise.errors import WorldError
from rankwise.world.arrival import Card, judge, meet


def card(rank, world_size=2, **other):
    return Card(rank=rank, world_size=world_size, host=other.pop("host", "h"), place=f"process {rank}", **other)


def meet_all(store, cards, timeout=10.0, **other):
    """Each card meets in its own thread; return a Company or an error per card."""
    results = [None] * len(cards)

    def one(i):
        try:
            results[i] = meet(store, cards[i], timeout=timedelta(seconds=timeout), **other)
        except WorldError as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(cards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_all_ranks_learn_the_same():
    """Hosts are numbered by lowest rank; ranks that share machine and cores are counted."""
    cards = [card(0, 4, host="b", mask="0,1"), card(1, 4, host="a"), card(2, 4, host="b", mask="0,1"), card(3, 4)]
    found = meet_all(dist.HashStore(), cards)
    assert found[0].hosts == [0, 1, 0, 2]
    assert found[0].sharers == [2, 1, 2, 1]
    assert all(company == found[0] for company in found)


def test_a_used_store_does_no_harm():
    """An attempt after another on the same store, with knocks of dead ranks in it: each meets under its own prefix."""
    store = dist.HashStore()
    store.set("rankwise/knock/1", "of-a-rank-that-died")
    store.add("rankwise/knocks", 2)  # the second never wrote its knock
    prefixes = set()
    for _ in range(3):
        first, second = meet_all(store, [card(0), card(1)])
        assert first == second
        prefixes.add(first.prefix)
    assert len(prefixes) == 3


def test_a_missing_rank_is_named():
    """Three of four arrive: all three raise, and the message names the fourth."""
    found = meet_all(dist.HashStore(), [card(rank, 4) for rank in (0, 1, 3)], timeout=1.0)
    assert all(isinstance(error, WorldError) for error in found)
    assert all("1 of 4 ranks did not arrive in time: 2." in str(error) for error in found)


def test_a_missing_main_rank_is_named():
    """Nobody answers when rank 0 is not there."""
    (error,) = meet_all(dist.HashStore(), [card(1)], timeout=1.0)
    assert "heard nothing from rank 0" in str(error)


def test_one_ranks_trouble_stops_all_at_once():
    """A rank without device reports it; every rank raises its message, long before the timeout."""
    began = time.monotonic()
    found = meet_all(dist.HashStore(), [card(0), card(1, error="local rank 1 has no device")], timeout=300.0)
    assert time.monotonic() - began < 60
    assert all("rank 1 (process 1): local rank 1 has no device" in str(error) for error in found)


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ([card(0, 2), card(1, 3)], "rank 1 (process 1) expects 3 ranks, rank 0 expects 2"),
        ([card(0, 3), card(1, 3), card(1, 3)], "two processes are rank 1"),
        ([card(0, 2, gpu="GPU-1"), card(1, 2, gpu="GPU-1")], "ranks 0 and 1 are both on GPU GPU-1"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(cards, message):
    """Different sizes, one rank twice, one GPU twice: every rank raises the same message."""
    found = meet_all(dist.HashStore(), cards)
    assert all(message in str(error) for error in found), found


def test_a_shared_gpu_can_be_allowed():
    """Only on request."""
    cards = [card(0, gpu="GPU-1"), card(1, gpu="GPU-1")]
    assert "allow_shared_device=True" in judge(cards, world_size=2, allow_shared_device=False)
    assert judge(cards, world_size=2, allow_shared_device=True) == ""
    assert judge([card(0, gpu="GPU-1"), card(1, gpu="GPU-2")], world_size=2, allow_shared_device=False) == ""
