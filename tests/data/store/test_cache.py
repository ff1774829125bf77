"""Decoded chunks in memory."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store import ChunkCache
from rankwise.errors import ConfigError


def array_of(size, value=0):
    return np.full(size, value, dtype=np.uint8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=60), st.integers(0, 150))
def test_bytes_stay_under_the_cap(requests, capacity):
    """At no moment does the cache keep more bytes than its cap, and a hit is what an LRU of that cap would have."""
    cache = ChunkCache(capacity)
    reference: list[tuple[int, int]] = []  # (key, size), oldest first
    sizes = {}
    for key, first_size in requests:
        size = sizes.setdefault(key, first_size)
        held = any(k == key for k, _ in reference)
        assert cache.holds([key]) == [key in cache] == [held]
        (array,) = cache.peek([key])
        assert (array is not None) == held
        if array is None:
            cache.put(key, array_of(size))
        reference = [entry for entry in reference if entry[0] != key]
        if size <= capacity:
            reference.append((key, size))
        while sum(s for _, s in reference) > capacity:
            reference.pop(0)
        assert cache.kept_bytes == sum(s for _, s in reference) <= capacity
        assert len(cache) == len(reference)


def test_the_later_of_two_arrays_stays():
    """What is put under a key takes the place of what was there, and the bytes are counted once."""
    cache = ChunkCache(100)
    cache.put("k", array_of(40, 1))
    cache.put("k", array_of(60, 2))
    assert cache.peek(["k"])[0].tolist() == [2] * 60
    assert (cache.kept_bytes, len(cache)) == (60, 1)


def test_many_threads_keep_the_count():
    """Threads that put and peek at once find right values, and no byte is lost in the count."""
    cache = ChunkCache(50 * 8)

    def work(seed):
        for key in np.random.default_rng(seed).integers(0, 20, 300).tolist():
            (array,) = cache.peek([key])
            if array is None:
                cache.put(key, array_of(8 * (1 + key % 3), key))
            elif array.tolist() != [key] * (8 * (1 + key % 3)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
    held = [array for array in cache.peek(range(20)) if array is not None]
    assert cache.kept_bytes == sum(array.nbytes for array in held) <= 400


def test_kept_arrays_are_read_only():
    """No reader can change what another one gets."""
    cache = ChunkCache(100)
    cache.put("k", array_of(4))
    with pytest.raises(ValueError, match="read-only"):
        cache.peek(["k"])[0][0] = 1


def test_zero_is_off_and_negative_is_refused():
    """0 keeps nothing; a negative cap is an error."""
    cache = ChunkCache(0)
    cache.put("k", array_of(4))
    assert len(cache) == 0
    with pytest.raises(ConfigError, match="-1"):
        ChunkCache(-1)


def test_travels_empty():
    """In another process the cache has the same size and nothing in it."""
    cache = ChunkCache(500)
    cache.put("k", array_of(4))
    arrived = pickle.loads(pickle.dumps(cache))
    assert (arrived.capacity_bytes, len(arrived)) == (500, 0)
