"""Decoded chunks in memory."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store import ChunkCache
from rankwise.errors import ConfigError


def load_of(size):
    return lambda: np.zeros(size, dtype=np.uint8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=60), st.integers(0, 150))
def test_bytes_stay_under_the_cap(requests, capacity):
    """At no moment does the cache keep more bytes than its cap, and a hit is what an LRU of that cap would have."""
    cache = ChunkCache(capacity)
    reference: list[tuple[int, int]] = []  # (key, size), oldest first
    sizes = {}
    for key, first_size in requests:
        size = sizes.setdefault(key, first_size)
        array, hit = cache.get(key, load_of(size))
        assert hit == any(k == key for k, _ in reference)
        reference = [entry for entry in reference if entry[0] != key]
        if size <= capacity:
            reference.append((key, size))
        while sum(s for _, s in reference) > capacity:
            reference.pop(0)
        assert array.nbytes == size
        assert cache.kept_bytes == sum(s for _, s in reference) <= capacity
        assert len(cache) == len(reference)


def test_two_threads_load_an_absent_key_once():
    """A thread that asks for what another is loading waits for it instead of loading it again."""
    cache, begun, go = ChunkCache(1000), threading.Event(), threading.Event()
    loads, results = [], []

    def slow():
        loads.append(1)
        begun.set()
        assert go.wait(10)
        return np.ones(8)

    def ask():
        results.append(cache.get("k", slow))

    first = threading.Thread(target=ask)
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=ask)
    second.start()
    assert "k" in cache
    go.set()
    first.join(10)
    second.join(10)
    assert len(loads) == 1
    assert sorted(hit for _, hit in results) == [False, True]
    assert results[0][0] is results[1][0]


def test_a_failed_load_is_not_kept():
    """The error reaches the caller, and the next call tries again."""
    cache = ChunkCache(1000)

    def fail():
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        cache.get("k", fail)
    assert "k" not in cache
    assert cache.get("k", load_of(3))[1] is False


def test_kept_arrays_are_read_only():
    """No reader can change what another one gets."""
    array, _ = ChunkCache(100).get("k", load_of(4))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_zero_is_off_and_negative_is_refused():
    """0 keeps nothing; a negative cap is an error."""
    cache = ChunkCache(0)
    cache.get("k", load_of(4))
    assert len(cache) == 0
    with pytest.raises(ConfigError, match="-1"):
        ChunkCache(-1)


def test_travels_empty():
    """In another process the cache has the same size and nothing in it."""
    cache = ChunkCache(500)
    cache.get("k", load_of(4))
    arrived = pickle.loads(pickle.dumps(cache))
    assert (arrived.capacity_bytes, len(arrived)) == (500, 0)
