"""Memory of batches, and the pool that hands it out."""

import threading

import numpy as np
import pytest

from rankwise.data.contract import FieldSpec
from rankwise.data.feed import BufferPool, HostBuffer
from rankwise.errors import ConfigError

SPECS = {
    "image": FieldSpec(shape=(4, 3), dtype=np.dtype("f4")),
    "label": FieldSpec(shape=(), dtype=np.dtype("i8")),
}


def test_memory_is_used_again():
    """A smaller or equal batch lies in the memory of an earlier one; a larger one makes it grow."""
    buffer = HostBuffer()
    buffer.reserve(SPECS, 8, {})
    first, size = buffer.arrays("image")[0], buffer.num_bytes
    buffer.reserve(SPECS, 5, {})
    assert np.shares_memory(first, buffer.arrays("image")[0])
    assert buffer.num_bytes == size == 8 * (48 + 8)
    buffer.reserve(SPECS, 9, {})
    assert buffer.arrays("image")[0].shape == (9, 4, 3)


def test_no_samples_keep_shape_and_dtype():
    """A batch of zero samples has arrays of zero rows, of the right shape and dtype."""
    buffer = HostBuffer()
    buffer.reserve(SPECS, 0, {})
    (image,) = buffer.arrays("image")
    assert (image.shape, image.dtype) == ((0, 4, 3), np.float32)
    with pytest.raises(KeyError):
        buffer.arrays("mask")


def test_ragged_fields_have_three_arrays():
    """A ragged field gets room for its values, their columns and the row pointers; its capacity must be known."""
    specs = {"x": FieldSpec(shape=(), dtype=np.dtype("f4"), ragged=True)}
    buffer = HostBuffer()
    buffer.reserve(specs, 3, {"x": 7})
    data, indices, indptr = buffer.arrays("x")
    assert (data.shape, indices.shape, indptr.shape) == ((7,), (7,), (4,))
    with pytest.raises(ConfigError, match="'x' has no capacity"):
        buffer.reserve(specs, 3, {})


def test_reserve_waits_for_the_consumers_work():
    """A buffer that was released behind an event is filled again only after it."""

    class Event:
        waited = False

        def synchronize(self):
            self.waited = True

    buffer, event = HostBuffer(), Event()
    buffer.busy = event
    buffer.reserve(SPECS, 1, {})
    assert event.waited
    assert buffer.busy is None


def test_a_pool_waits_for_a_buffer_to_come_back():
    """No more than `limit` buffers are out; who wants another gets the first that comes back."""
    pool = BufferPool()
    first, second = pool.acquire(2), pool.acquire(2)
    got = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire(2)))
    thread.start()
    thread.join(0.05)
    assert (got, pool.num_out) == ([], 2)
    pool.give_back(second)
    thread.join(10)
    assert got == [second]
    assert got[0] is not first


def test_closing_a_pool_lets_waiters_go():
    """Who waits when the pool is closed gets nothing, and so does who comes later; what came back can be drained."""
    pool = BufferPool()
    held = pool.acquire(1)
    got = []
    thread = threading.Thread(target=lambda: got.append(pool.acquire(1)))
    thread.start()
    pool.close()
    thread.join(10)
    assert got == [None]
    pool.give_back(held)
    assert pool.acquire(1) is None
    assert pool.drain() == [held]


@pytest.mark.parametrize("kept", [[True, False, True, True], [False] * 4, [True] * 4, [False, False, False, True]])
def test_rows_that_are_dropped_leave_the_others_in_order(kept):
    """The kept rows of every field move up inside the same memory."""
    buffer = HostBuffer()
    specs = {
        "x": FieldSpec(shape=(2,), dtype=np.dtype("f4")),
        "r": FieldSpec(shape=(5,), dtype=np.dtype("i2"), ragged=True),
    }
    buffer.reserve(specs, 4, {"r": 6})
    buffer.arrays("x")[0][:] = np.arange(8).reshape(4, 2)
    data, indices, indptr = buffer.arrays("r")
    data[:], indices[:], indptr[:] = [1, 2, 2, 4, 4, 4], [0, 0, 1, 0, 1, 2], [0, 1, 3, 3, 6]
    before = buffer.num_bytes
    buffer.keep(np.array(kept))
    rows = np.flatnonzero(kept)
    np.testing.assert_array_equal(buffer.arrays("x")[0], np.arange(8).reshape(4, 2)[rows])
    data, indices, indptr = buffer.arrays("r")
    lengths = np.array([1, 2, 0, 3])[rows]
    assert np.diff(indptr).tolist() == lengths.tolist()
    assert data.tolist() == np.repeat([1, 2, 0, 4], [1, 2, 0, 3])[np.repeat(kept, [1, 2, 0, 3])].tolist()
    assert indices.tolist() == [column for length in lengths for column in range(length)]
    assert buffer.num_bytes == before
