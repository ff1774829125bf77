"""Memory of batches: buffers over a pool."""

import numpy as np
import pytest

from rankwise.data.contract import FieldSpec
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.errors import ConfigError

SPECS = {
    "image": FieldSpec(shape=(4, 3), dtype=np.dtype("f4")),
    "label": FieldSpec(shape=(), dtype=np.dtype("i8")),
}


def test_memory_is_used_again():
    """What nobody looks at any more is where the next batch lies; a larger one gets new memory."""
    memory = MemoryPool()
    buffer = HostBuffer(memory)
    addresses = set()
    for _ in range(3):
        buffer.reserve(SPECS, 800, {})
        addresses.add(buffer.arrays("image")[0].ctypes.data)
        assert buffer.num_bytes == 800 * (48 + 8)
    assert len(addresses) == 1
    assert memory.num_pieces == 2
    buffer.reserve(SPECS, 900, {})
    assert buffer.arrays("image")[0].shape == (900, 4, 3)


def test_what_is_looked_at_is_not_written_again():
    """Reserving again leaves a view as it is; each field has memory of its own, so the others are used again."""
    memory = MemoryPool()
    buffer = HostBuffer(memory)
    buffer.reserve(SPECS, 800, {})
    view, labels = buffer.arrays("image")[0][10:20].T, buffer.arrays("label")[0].ctypes.data
    view[:] = 7
    buffer.reserve(SPECS, 800, {})
    buffer.arrays("image")[0][:] = 1
    assert (view == 7).all()
    assert buffer.arrays("label")[0].ctypes.data == labels
    assert memory.num_pieces == 3


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
    """A buffer that waits for an event is filled again only after it."""

    class Event:
        waited = False

        def synchronize(self):
            self.waited = True

    buffer, event = HostBuffer(), Event()
    buffer.reserve(SPECS, 1, {})
    buffer.lease.wait_for(event)
    buffer.reserve(SPECS, 1, {})
    assert event.waited


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
