"""Long arrays of whole numbers in pages."""

import contextlib
import pickle
import tracemalloc

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.matrices import pointers
from rankwise.data.rows.matrices.pointers import PagedNumbers
from rankwise.data.store import BoxReader, read_meta


@pytest.fixture
def reader():
    with BoxReader(threads=1) as reader:
        yield reader


class Refuse:
    """No number may be below 0."""

    def is_sound(self, page, first, chunk):
        return page.min() >= 0

    def problems(self, page, first, chunk, unread, ask):
        starts = range(0, len(page), chunk)
        return {(first + k) // chunk: "one is negative" for k in starts if page[k : k + chunk].min() < 0}


def make(folder, values, reader, *, chunk=64, capacity_bytes=2**20, judge=None):
    zarr.create_array(str(folder / "numbers"), data=np.asarray(values), chunks=(chunk,), overwrite=True)
    meta = read_meta(folder / "numbers")
    return PagedNumbers(meta, reader, judge, what="numbers", capacity_bytes=capacity_bytes)


def taken(held, places):
    """Numbers at places, all of them sound."""
    numbers, errors = held.take(np.asarray(places))
    assert not errors
    return numbers


@given(
    num=st.integers(1, 400),
    chunk=st.integers(1, 90),
    step=st.sampled_from([0, 3, 600, 5_000, 10**6, 10**12]),
    seed=st.integers(0, 99),
)
@settings(max_examples=10, deadline=None)
def test_numbers_are_those_of_the_array(tmp_path_factory, num, chunk, step, seed):
    """Any places, in any order and several times, of arrays with any chunks and steps, with room for few pages."""
    rng = np.random.default_rng(seed)
    slots = rng.integers(1, 6)
    values = np.cumsum(rng.integers(0, step + 1, num))
    with BoxReader(threads=1, cache=0) as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointers, "_LEAST_PAGE", 40)
        held = make(tmp_path_factory.mktemp("numbers"), values, reader, chunk=chunk, capacity_bytes=slots * 130)
        for _ in range(3):
            places = rng.integers(0, num, 50)
            np.testing.assert_array_equal(taken(held, places), values[places])
        assert taken(held, np.empty(0, dtype=np.int64)).shape == (0,)


def test_the_pages_used_last_are_kept(tmp_path, reader, monkeypatch):
    """With room for two pages of three, going back and forth between two reads no third time."""
    monkeypatch.setattr(pointers, "_LEAST_PAGE", 64)
    held = make(tmp_path, np.arange(192), reader, capacity_bytes=2 * (4 * 8 + 64 * 2))
    for place in (5, 70, 5, 70, 130, 130, 70):
        assert taken(held, [place]).tolist() == [place]
    assert held.num_pages_read == 3
    taken(held, [5])
    assert held.num_pages_read == 4


def test_chunks_are_decoded_once_and_kept_nowhere_else(tmp_path, reader):
    """All pages of a request come in one read of their chunks, and take no room in the cache of the reader."""
    values = np.cumsum(np.random.default_rng(0).integers(400, 600, 100_000))
    held = make(tmp_path, values, reader, chunk=9_000)
    places = np.random.default_rng(1).permutation(100_000)
    for _ in range(2):
        np.testing.assert_array_equal(taken(held, places), values[places])
    assert held.num_pages_read == reader.stats.fast_chunks == 12
    assert reader.stats.decoded_bytes == 12 * 9_000 * 8
    assert len(reader.cache) == 0


def test_bytes_of_a_number(tmp_path, reader):
    """A number of an array that grows by less than 65,536 in 16 places takes 2.5 bytes, and reading it little more."""
    num = 1_000_000
    # what is loaded and compiled at the first time
    make(tmp_path / "first", np.arange(num) * 4_000, reader, chunk=8_192).take(np.arange(0, num, 8_192))
    held = make(tmp_path, np.arange(num) * 4_000, reader, chunk=8_192, capacity_bytes=2**30)
    assert held.capacity_bytes < 2.6 * num
    tracemalloc.start()
    held.take(np.arange(0, num, 8_192))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held.num_pages_read == 123
    assert peak < 40 * 2**20  # 8 MiB of pages as they are read, some times over; not 2**30


def test_of_a_damaged_page_the_other_chunks_stay_good(tmp_path, reader):
    """What is wrong is told with the chunk, again whenever it is asked for; only trouble with the storage is raised."""
    values = np.arange(3 * 8_192)
    values[8_192 + 100] = -1
    held = make(tmp_path, values, reader, chunk=64, judge=Refuse())
    for _ in range(2):
        numbers, errors = held.take(np.array([8_255, 8_256, 8_319, 3, 8_320, 20_000]))
        assert sorted(errors) == [1, 2]
        assert numbers[[0, 3, 4, 5]].tolist() == [8_255, 3, 8_320, 20_000]
        assert "the numbers " in str(errors[2].error)
        assert "are damaged: in chunk (129,) one is negative" in str(errors[2].error)
        assert (errors[2].box, errors[2].damage) == (2, True)
    assert held.num_pages_read == 3
    held.mark_damaged(5, "nobody believes it")
    assert sorted(held.take(np.array([64, 63, 0]))[1]) == [1, 2]


def test_chunks_that_cannot_be_read_are_told(tmp_path, reader):
    """A file that was cut: its chunk alone, in each of two pages, and the short one at the end."""
    values = np.arange(20_000)
    held = make(tmp_path, values, reader, chunk=6_000)
    for chunk in (1, 3):
        path = tmp_path / "numbers" / "c" / str(chunk)
        path.write_bytes(path.read_bytes()[:20])
    places = np.array([5_999, 6_000, 11_999, 12_000, 17_999, 18_000, 19_999])
    numbers, errors = held.take(places)
    assert sorted(errors) == [1, 2, 5, 6]
    assert numbers[[0, 3, 4]].tolist() == [5_999, 12_000, 17_999]
    assert "chunk (3,)" in errors[6].place


def test_it_travels_without_its_pages(tmp_path, reader):
    """In another process pages are read anew."""
    held = make(tmp_path, np.arange(100), reader)
    assert taken(held, [7]).tolist() == [7]
    there = pickle.loads(pickle.dumps(held))
    assert there.num_pages_read == 0
    assert taken(there, [7, 99]).tolist() == [7, 99]


class Interrupting(np.ndarray):
    """A Ctrl-C comes when something is written into it."""

    def __setitem__(self, *_):
        raise KeyboardInterrupt


def test_an_interrupted_read_leaves_no_wrong_numbers(tmp_path, reader, monkeypatch):
    """A page is found only once all else is noted: another one that takes its place does not pass for it."""
    monkeypatch.setattr(pointers, "_LEAST_PAGE", 64)
    held = make(tmp_path, np.arange(192), reader, capacity_bytes=4 * 8 + 64 * 2)
    pages = held._held
    held._held = pages.view(Interrupting)
    with contextlib.suppress(KeyboardInterrupt):
        held.take(np.array([5]))
    held._held = pages
    assert [taken(held, [place]).tolist() for place in (70, 5)] == [[70], [5]]
