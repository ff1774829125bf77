"""The first meeting over the store: threads stand for ranks, the store is torch's own."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from rankwise.errors import WorldError
from rankwise.world.rendezvous.protocol import HELLOS, RankInfo, SignedStore, check_ranks, rendezvous


def info(rank, world_size=2, **other):
    return RankInfo(rank=rank, world_size=world_size, host=other.pop("host", "h"), place=f"process {rank}", **other)


def meet_all(store, infos, timeout=50.0, **other):
    """Each rank info meets in its own thread; return a Layout or an error for each."""
    results = [None] * len(infos)

    def one(i):
        try:
            results[i] = rendezvous(store, infos[i], timeout=timedelta(seconds=timeout), **other)
        except WorldError as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(infos))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_all_ranks_learn_the_same():
    """Hosts are numbered by lowest rank; ranks that share machine and cores are counted."""
    infos = [info(0, 4, host="b", mask="0,1"), info(1, 4, host="a"), info(2, 4, host="b", mask="0,1"), info(3, 4)]
    found = meet_all(dist.HashStore(), infos)
    assert [layout.host for layout in found] == [0, 1, 0, 2]
    assert [layout.sharers for layout in found] == [2, 1, 2, 1]
    assert [layout.local_size for layout in found] == [2, 1, 2, 1]
    assert {(layout.prefix, layout.num_hosts) for layout in found} == {(found[0].prefix, 3)}


def test_a_used_store_does_no_harm():
    """An attempt after another on the same store, with hellos of dead ranks in it: each meets under its own prefix."""
    store = dist.HashStore()
    store.set("rankwise/hello/1", "of-a-rank-that-died")
    store.add(HELLOS, 2)  # the second never wrote its hello
    prefixes = set()
    for _ in range(3):
        first, second = meet_all(store, [info(0), info(1)])
        assert first == second
        prefixes.add(first.prefix)
    assert len(prefixes) == 3


def test_ranks_of_earlier_versions_are_heard():
    """The keys of a hello never change: else ranks of two versions wait for each other, and never learn that."""
    store = dist.HashStore()
    store.set(f"rankwise/hello/{store.add('rankwise/hellos', 1)}", "of-an-earlier-version")
    meet_all(store, [info(0), info(1)])
    assert store.check(["rankwise/answer/of-an-earlier-version"])


def test_a_missing_rank_is_named():
    """Three of four arrive: all three raise, and the message names the fourth."""
    found = meet_all(dist.HashStore(), [info(rank, 4) for rank in (0, 1, 3)], timeout=4.0)
    assert all(isinstance(error, WorldError) for error in found)
    assert all("1 of 4 ranks did not arrive in time: 2." in str(error) for error in found)


def test_a_missing_main_rank_is_named():
    """Nobody answers when rank 0 is not there."""
    (error,) = meet_all(dist.HashStore(), [info(1)], timeout=1.0)
    assert "got no answer from rank 0 in time" in str(error)


def test_one_ranks_trouble_stops_all_at_once():
    """A rank without device reports it; every rank raises its message, long before the timeout."""
    # a thread that meets for longer than a minute leaves no result
    found = meet_all(dist.HashStore(), [info(0), info(1, error="local rank 1 has no device")], timeout=300.0)
    assert all("rank 1 (process 1): local rank 1 has no device" in str(error) for error in found)


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ([info(0, 2), info(1, 3)], "rank 1 (process 1) expects 3 ranks, but rank 0 expects 2"),
        ([info(0, 3), info(1, 3), info(1, 3)], "two processes are rank 1"),
        ([info(0, 2, gpu="GPU-1"), info(1, 2, gpu="GPU-1")], "ranks 0 and 1 are both on GPU GPU-1"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(infos, message):
    """Different sizes, one rank twice, one GPU twice: every rank raises the same message."""
    found = meet_all(dist.HashStore(), infos)
    assert all(message in str(error) for error in found), found


def test_other_versions_are_refused():
    """What must be equal on all ranks is named with both values; infos of one mind pass."""
    infos = [info(0, same={"torch": "2.8.0"}), info(1, same={"torch": "2.9.1"})]
    said = check_ranks(infos, world_size=2, allow_shared_device=False)
    assert said.startswith("rank 1 (process 1) has torch 2.9.1, but rank 0 (")
    assert said.endswith(") has torch 2.8.0: give all ranks the same torch")
    assert check_ranks([infos[0], info(1, same={"torch": "2.8.0"})], world_size=2, allow_shared_device=False) == ""


def test_a_shared_gpu_can_be_allowed():
    """Only on request."""
    infos = [info(0, gpu="GPU-1"), info(1, gpu="GPU-1")]
    assert "allow_shared_device=True" in check_ranks(infos, world_size=2, allow_shared_device=False)
    assert check_ranks(infos, world_size=2, allow_shared_device=True) == ""
    assert check_ranks([info(0, gpu="GPU-1"), info(1, gpu="GPU-2")], world_size=2, allow_shared_device=False) == ""


def hello_of_a_stranger(store, text):
    """What somebody does who knows the protocol and the port, and nothing else."""
    number = store.add(HELLOS, 1)
    store.set(f"rankwise/hello/{number}", text)


@pytest.mark.parametrize("text", ["deadbeef", f"{'0' * 64} deadbeef", b"\xff\xfe \x00", ""])
def test_a_stranger_is_refused_and_the_job_goes_on(text):
    """Hellos without the secret, signed with another one or garbage: the ranks meet, and nobody learns their prefix."""
    store = dist.HashStore()
    hello_of_a_stranger(store, text)
    found = meet_all(store, [info(0), info(1)], secret="s3cret")
    assert [layout.local_size for layout in found] == [2, 2], found
    assert found[0] == found[1]
    answers = [store.get(key).decode() for key in store.list_keys() if "/answer/" in key] if text == "deadbeef" else []
    assert all(found[0].prefix.rpartition("/")[2] not in answer for answer in answers)


def test_a_rank_with_another_secret_hears_so_at_once():
    """It is not let in and told why; the others wait on for the rank that is missing."""
    store, results = dist.HashStore(), {}

    def one(rank, secret, timeout):
        try:
            results[rank, secret] = rendezvous(store, info(rank), timeout=timedelta(seconds=timeout), secret=secret)
        except WorldError as error:
            results[rank, secret] = str(error)

    first = threading.Thread(target=one, args=(0, "ours", 120))
    first.start()
    one(1, "theirs", 100)
    assert "has another secret" in results[1, "theirs"]
    assert first.is_alive()
    one(1, "ours", 100)
    first.join(60)
    assert results[0, "ours"] == results[1, "ours"]


@pytest.mark.parametrize(
    "text", ["no json", "[1]", '{"rank": 1}', '{"rank": "1", "world_size": 2, "host": "h"}', '{"colour": "red"}']
)
def test_a_malformed_card_is_refused_and_the_job_goes_on(text, caplog):
    """Without a secret a stranger may hand in an info: what is none is put aside, with a warning."""

    class Watched:
        """The store; as soon as rank 1 hands in its info, a stranger's lies before it."""

        def __init__(self, store):
            self.store, self.done = store, False

        def __getattr__(self, name):
            return getattr(self.store, name)

        def add(self, key, amount):
            if key.endswith("/arrived") and amount and not self.done:
                self.done = True
                number = self.store.add(key, 1)
                SignedStore(self.store, "").put(f"{key.removesuffix('arrived')}info/{number}", text)
            return self.store.add(key, amount)

    found = meet_all(Watched(dist.HashStore()), [info(0), info(1)])
    assert found[0] == found[1]
    assert [layout.local_size for layout in found] == [2, 2]
    assert "refused an arrival message that no rank of this job has written" in caplog.text
