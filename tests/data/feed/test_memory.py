"""Memory that is used again once nobody looks at it."""

import contextlib
import threading

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from rankwise.data.feed.memory import pool as memory
from rankwise.data.feed.memory.csr import scipy_csr, torch_csr
from rankwise.data.feed.memory.lease import Lease
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.errors import ConfigError


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_that_nobody_looks_at_is_used_again():
    """The same memory for the next array that fits; new memory for a larger one."""
    pool = MemoryPool()
    first = pool.take(1000, np.dtype("f4"))
    where = address(first)
    del first
    again = pool.take(2050, np.dtype("u2"))
    assert (address(again), again.dtype, again.shape) == (where, np.dtype("u2"), (2050,))
    assert address(pool.take(10, np.dtype("f8"))) != where
    assert pool.num_pieces == 2


def test_memory_begins_at_a_line_of_the_caches():
    """New memory and memory that is used again, whatever goes before."""
    pool, held = MemoryPool(capacity=8), []
    for count in (3, 1000, 3, 77, 10**6, 900, 1):
        held.append(pool.take(count, np.dtype("u1")))
        assert (address(held[-1]) % 64, len(held[-1])) == (0, count)
    held.clear()
    assert address(pool.take(900, np.dtype("u1"))) % 64 == 0
    assert pool.num_pieces == 7


def test_what_is_kept_is_never_touched():
    """Views, CSR matrices and tensors keep their memory, however many requests come after."""
    pool = MemoryPool(capacity=2)
    kept = []
    for number in range(12):
        array = pool.take(100, np.dtype("i4"))
        array[:] = number
        view = array[10:20]
        pointers = np.arange(0, 11, 5, dtype="i4")
        kept.append(
            [view, sp.csr_matrix((view, np.zeros(10, "i4"), pointers), shape=(2, 3)), torch.from_numpy(view)][
                number % 3
            ]
        )
        del array, view
        pool.take(100, np.dtype("i4"))[:] = -1
    for number, held in enumerate(kept):
        values = held.data if sp.issparse(held) else np.asarray(held)
        assert np.asarray(values).tolist() == [number] * 10


def test_far_larger_memory_is_left_to_others():
    """A short request takes memory of its own, of its size, which the next short one gets again."""
    pool = MemoryPool()
    large = pool.take(100_000, np.dtype("u1"))
    at = address(large)
    del large
    addresses = set()
    for _ in range(3):
        small = pool.take(40_000, np.dtype("u1"))
        assert address(small) != at
        addresses.add(address(small))
        del small
        again = pool.take(90_000, np.dtype("u1"))
        assert address(again) == at
        del again
    assert len(addresses) == 1
    assert pool.num_pieces == 2


def sparse(make, parts):
    data = parts
    indices, indptr = torch.zeros(4, dtype=torch.int32), torch.tensor([0, 2, 4], dtype=torch.int32)
    return make((data, indices, indptr), 3)


@pytest.mark.parametrize(
    "share",
    [
        lambda a: a[1:, 2:],
        lambda a: a.T,
        lambda a: a.reshape(-1)[::2],
        lambda a: a.view("u1"),
        memoryview,
        np.from_dlpack,
        lambda a: a.__dlpack__(),
        torch.from_numpy,
        lambda a: torch.from_numpy(a)[0, 1:].t(),
        lambda a: torch.from_dlpack(torch.from_numpy(a)),
        lambda a: torch.from_numpy(a).detach().numpy(),
        lambda a: sparse(torch_csr, torch.from_numpy(a).reshape(-1)[:4]),
        lambda a: sparse(torch_csr, torch.from_numpy(a).reshape(-1)[:4]).values(),
        lambda a: scipy_csr((a.reshape(-1)[:4], np.zeros(4, "i4"), np.array([0, 2, 4], "i4")), 3),
        lambda a: scipy_csr((a.reshape(-1)[:4], np.zeros(4, "i4"), np.array([0, 2, 4], "i4")), 3).data,
    ],
)
def test_whatever_shares_memory_keeps_it(share):
    """Views, tensors, sparse matrices and their parts, DLPack capsules: while one is left, memory is not used again."""
    pool = MemoryPool()
    array = pool.take(1200, np.dtype("f4")).reshape(30, 40)
    where, shared = address(array), share(array)
    del array
    other = pool.take(1200, np.dtype("f4"))
    assert address(other) != where
    del shared
    assert address(pool.take(1200, np.dtype("f4"))) == where


def test_memory_comes_back_from_other_threads():
    """The last view may go in any thread, at any time: nothing is lost, and nothing is handed out twice."""
    pool, errors = MemoryPool(capacity=100), []

    def work(number):
        for _ in range(300):
            array = pool.take(100, np.dtype("i8"))
            array[:] = number
            view = array[3:50]
            del array
            if not (view == number).all():
                errors.append(number)
            del view  # else a thread has two pieces while it takes the next one, and how many there are is chance

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert pool.num_pieces <= 4


def test_what_was_kept_and_dropped_is_not_remembered_for_ever():
    """A pool remembers as many pieces as it needs without those that were kept."""
    pool = MemoryPool(capacity=2)
    kept = [pool.take(1000, np.dtype("u1"), exact=True) for _ in range(50)]
    assert pool.num_bytes == 50_000
    kept.clear()
    assert pool.num_bytes == 2000


def test_a_cap_is_kept_and_said():
    """What may not be taken beside what is kept is an error that names both, no wait; dropping makes room."""
    pool = MemoryPool(cap_bytes=10_000)
    pool.expect(1, num_pieces=1, num_bytes=4000)
    kept = [pool.take(4000, np.dtype("u1"), exact=True) for _ in range(2)]
    assert not pool.has_room()
    with pytest.raises(ConfigError, match=r"use 8000 of the 10000 bytes.*Keep fewer"):
        pool.take(4000, np.dtype("u1"), exact=True)
    kept.pop()
    assert pool.has_room()
    assert len(pool.take(5500, np.dtype("u1"), exact=True)) == 5500  # what is free is left for it


def test_far_more_than_is_needed_is_said_once(caplog, monkeypatch):
    """Who keeps much is told how much, and what helps; on the main rank, once in a process."""
    monkeypatch.setattr(MemoryPool, "warned", False)
    monkeypatch.setattr(memory, "_SMALL_EXCESS_BYTES", 0)
    for warns in (False, True, True):
        pool = MemoryPool(warns=warns)
        kept = []
        for _ in range(9):
            kept.append(pool.take(1 << 20, np.dtype("u1"), exact=True))
            pool.expect(2, num_pieces=1, num_bytes=1 << 20)
        assert len(caplog.records) == warns
    assert "5 MiB in total now instead of 2" in caplog.text


class Copy:
    """A device's copy that a Ctrl-C meets in the middle of the first wait for it."""

    def __init__(self):
        self.num_waits = 0

    def synchronize(self):
        self.num_waits += 1
        if self.num_waits == 1:
            raise KeyboardInterrupt


def lent(pool, done):
    """Memory that is out until what waits for it is over."""
    lease = Lease()
    lease.wait_for(done)
    return pool.take(1000, np.dtype("u1"), lease=lease)


def test_an_interrupted_wait_is_made_up_for():
    """Memory that a device may still read is waited for by who takes it next, and is not lost."""
    pool, copy = MemoryPool(), Copy()
    lent(pool, copy)
    with contextlib.suppress(KeyboardInterrupt):
        pool.take(1000, np.dtype("u1"))
    pool.take(1000, np.dtype("u1"))
    assert (copy.num_waits, pool.num_pieces) == (2, 1)


def test_memory_is_forgotten_after_an_interrupted_wait():
    """What is too much is counted until it has gone."""
    pool = MemoryPool(capacity=1)
    held = [lent(pool, Copy()), lent(pool, Copy())]
    num_bytes = pool.num_bytes
    held.clear()
    with pytest.raises(KeyboardInterrupt):
        pool.num_bytes  # noqa: B018
    assert pool.num_bytes == num_bytes // 2
