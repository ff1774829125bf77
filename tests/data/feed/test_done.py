"""What `release` waits for."""

import numpy as np
import pytest

from rankwise.data.contract import FieldSpec
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.memory.lease import done_of
from rankwise.data.feed.memory.pool import MemoryPool, allocate_bytes
from rankwise.errors import ConfigError


class Array:
    """A JAX array as far as this is concerned."""

    def __init__(self):
        self.asked = []

    def is_ready(self):
        self.asked.append("is_ready")
        return False

    def block_until_ready(self):
        self.asked.append("block_until_ready")
        return self


class Event:
    def synchronize(self):
        pass


def test_events_and_results_are_waited_for():
    """An event stands for itself, a JAX array for the computation that makes it, None for nothing."""
    event, array = Event(), Array()
    assert done_of(None) is None
    assert done_of(event) is event
    done = done_of(array)
    assert not done.query()
    done.synchronize()
    assert array.asked == ["is_ready", "block_until_ready"]


@pytest.mark.parametrize("wrong", ["now", 1.5, object(), True])
def test_other_things_are_refused(wrong):
    """What cannot be waited for is refused, and told that the memory is not protected."""
    with pytest.raises(ConfigError, match="needs an event"):
        done_of(wrong)


def test_memory_is_not_filled_before_the_result_is_there():
    """What came back with a result waits for it when it is handed out again, once."""
    memory, array, spec = MemoryPool(), Array(), {"x": FieldSpec(shape=(9,), dtype=np.dtype("f8"))}
    for event in (array, None):
        buffer = HostBuffer(memory)
        buffer.reserve(spec, 100, {})
        buffer.lease.wait_for(done_of(event))
        if event is None:
            assert array.asked == ["block_until_ready"]
        del buffer
    kept = [HostBuffer(memory) for _ in range(2)]
    for buffer in kept:
        buffer.reserve(spec, 100, {})
    assert array.asked == ["block_until_ready"]
    assert memory.num_pieces == 2


def test_memory_that_waits_for_nothing_goes_first():
    """Who needs memory takes what is free before what a device may still read."""
    memory, array, spec = MemoryPool(), Array(), {"x": FieldSpec(shape=(9,), dtype=np.dtype("f8"))}
    free, waiting = HostBuffer(memory), HostBuffer(memory)
    for buffer in (free, waiting):
        buffer.reserve(spec, 100, {})
    waiting.lease.wait_for(done_of(array))
    del free, waiting, buffer
    taken = HostBuffer(memory)
    taken.reserve(spec, 100, {})
    assert array.asked == []


@pytest.mark.parametrize("num_bytes", [1, 63, 64, 65, 4097])
def test_memory_is_aligned(num_bytes):
    """Batches begin at multiples of 64 bytes, which is what XLA shares."""
    held = [allocate_bytes(num_bytes, pinned=False) for _ in range(5)]
    assert all(memory.ctypes.data % 64 == 0 and memory.shape == (num_bytes,) for memory in held)
    held[0][:] = 7
    assert (np.asarray(held[0]) == 7).all()


def test_every_field_of_a_buffer_is_aligned():
    """Fields of odd sizes, dense and ragged, begin where XLA shares them; also after the buffer has grown."""
    specs = {
        "image": FieldSpec(shape=(3, 5, 7), dtype=np.dtype("u1")),
        "flag": FieldSpec(shape=(), dtype=np.dtype("?")),
        "row": FieldSpec(shape=(), dtype=np.dtype("f4"), ragged=True),
    }
    buffer = HostBuffer()
    for num_samples in (3, 11, 2):
        buffer.reserve(specs, num_samples, {"row": 13 * num_samples})
        arrays = [array for name in specs for array in buffer.arrays(name)]
        assert len(arrays) == 5
        assert all(array.ctypes.data % 64 == 0 for array in arrays)
