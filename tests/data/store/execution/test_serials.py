"""Numbers for arrays: equal for equal ones, never given twice."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import zarr

from rankwise.data.store import ChunkCache, cache, read_meta


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(cache, "_MOST_ARRAYS", 8)


def made():
    return cache.PlanCache(ChunkCache(0))


@pytest.fixture
def meta(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
    return read_meta(str(tmp_path / "a"))


def test_equal_arrays_have_one_number(meta):
    """Metadata that were parsed twice are those of one array; another place or content is another."""
    serials = made()
    first = serials.serial(meta)
    assert serials.serial(replace(meta)) == first
    assert serials.serial(meta) == first
    others = [serials.serial(replace(meta, place="elsewhere")), serials.serial(replace(meta, fingerprint="other"))]
    assert len({first, *others}) == 3


def test_no_number_comes_twice(meta):
    """After forgetting, and in another reader, what is kept under an old number is not found again."""
    serials = made()
    seen = {serials.serial(meta)}
    for _ in range(3):
        serials.clear()
        seen.add(serials.serial(meta))
    seen.add(made().serial(meta))
    assert len(seen) == 5


def test_memory_is_bounded(meta, few):
    """Only the last arrays are remembered; one that was forgotten gets another number, the others keep theirs."""
    serials = made()
    metas = [replace(meta, place=str(number)) for number in range(20)]
    numbers = [serials.serial(each) for each in metas]
    assert len(set(numbers)) == 20
    assert serials._serial.cache_info().currsize == 8
    assert [serials.serial(each) for each in metas[-8:]] == numbers[-8:]
    assert serials.serial(metas[0]) not in numbers


def test_an_array_in_use_is_not_forgotten(meta, few):
    """Arrays that pass by do not push out the one that is asked for all the time."""
    serials = made()
    first = serials.serial(meta)
    for number in range(50):
        serials.serial(replace(meta, place=str(number)))
        assert serials.serial(meta) == first


def test_threads_that_ask_together_get_one_number(meta, monkeypatch):
    """Else an array would count twice, and its chunks be kept twice."""
    serials, others, numbers = made(), threading.Barrier(2), itertools.count()

    class Numbers:
        def __next__(self):
            with suppress(threading.BrokenBarrierError):
                others.wait(0.2)  # a second thread is let in, if it can be
            return next(numbers)

    monkeypatch.setattr(cache, "_numbers", Numbers())
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(serials.serial, [meta, replace(meta)]))) == 1
