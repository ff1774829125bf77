"""Memory of load requests, used again."""

import numpy as np
import scipy.sparse as sp
import torch

from rankwise.data.rows.memory_pool import MemoryPool


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
