"""Zarr arrays by ranges of axis 0, against what zarr-python itself returns."""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

import rankwise.data.store.array as array_module
from rankwise.data.store import ChunkCache, open_array, wrap_array
from rankwise.errors import DataError

COMPRESSORS = {"zstd": [ZstdCodec(level=1)], "blosc": [BloscCodec(cname="lz4")], "gzip": [GzipCodec()], "raw": None}


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, 200, shape).astype(dtype)


@st.composite
def layouts(draw):
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 17)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
    options = {"shape": shape, "chunks": chunks, "dtype": draw(st.sampled_from(["u1", "<i2", "<f4", "<f8", "?"]))}
    if draw(st.booleans()):
        return {**options, "zarr_format": 2, "dtype": draw(st.sampled_from(["u1", ">i4", "<f8"]))}
    options["compressors"] = COMPRESSORS[draw(st.sampled_from(sorted(COMPRESSORS)))]
    if draw(st.booleans()):
        options["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    return options


@settings(max_examples=40, deadline=None)
@given(layouts(), st.randoms(use_true_random=False), st.sampled_from([0, 10_000]))
def test_chunks_and_rows_are_those_of_zarr(layout, random, capacity):
    """Any layout, version and codec: every chunk, and rows in any order, equal `array[...]` byte for byte."""
    array = zarr.create_array(zarr.storage.MemoryStore(), **layout)
    data = numbers(array.shape, array.dtype)
    array[...] = data
    stored = wrap_array(array, cache=ChunkCache(capacity))
    assert stored.dtype.isnative
    for chunk in range(stored.grid.num_chunks):
        first, stop = stored.grid.rows(chunk)
        decoded, _ = stored.read_chunk(chunk)
        assert decoded.dtype == stored.dtype
        np.testing.assert_array_equal(decoded, data[first:stop])
        rows = np.array(random.choices(range(first, stop), k=5))
        np.testing.assert_array_equal(stored.read_rows(chunk, rows)[0], data[rows])


def test_a_wide_chunk_is_read_by_rows(tmp_path, monkeypatch):
    """A chunk beyond the cache is not decoded as a whole: memory is bounded by the rows; same values."""
    monkeypatch.setattr(array_module, "_WIDE_BYTES", 100)
    data = numbers((12, 6, 6), "u2")
    zarr.create_array(tmp_path, data=data, chunks=(12, 3, 6))
    stored = open_array(tmp_path, cache=ChunkCache(0))
    rows = np.array([7, 2, 7, 11])
    picked, stats = stored.read_rows(0, rows)
    np.testing.assert_array_equal(picked, data[rows])
    assert stats.decoded_bytes == 3 * 72


def test_statistics_count_what_was_read(tmp_path):
    """Chunks decoded, cache hits, missing inner chunks and encoded bytes are exact for a local store."""
    array = zarr.create_array(tmp_path, shape=(20, 4), chunks=(5, 2), shards=(10, 4), dtype="i4", compressors=None)
    array[:5] = 1
    array[5:10, :2] = 2
    stored = open_array(tmp_path)
    for chunk in (0, 1, 2, 0):
        stored.read_chunk(chunk)
    stats = stored.stats
    assert (stats.chunks_decoded, stats.cache_hits, stats.fill_chunks) == (3, 1, 1 + 2)
    assert stats.read_bytes == 3 * 5 * 2 * 4
    assert stats.decoded_bytes == 3 * 5 * 4 * 4


def test_fingerprint_belongs_to_the_data(tmp_path):
    """Equal for a copy elsewhere and for another compressor level of equal size; different for other data or shape."""

    def made(name, data, **options):
        zarr.create_array(tmp_path / name, data=data, **options)
        return open_array(tmp_path / name).fingerprint

    data = numbers((50, 30), "i4")
    first = made("a", data, chunks=(10, 30))
    shutil.copytree(tmp_path / "a", tmp_path / "moved" / "b")
    assert open_array(tmp_path / "moved" / "b").fingerprint == first
    others = [
        made("other", np.zeros_like(data) + np.arange(30, dtype="i4"), chunks=(10, 30)),
        made("longer", numbers((51, 30), "i4"), chunks=(10, 30)),
        made("chunked", data, chunks=(5, 30)),
        made("typed", data.astype("i8"), chunks=(10, 30)),
    ]
    assert len({first, *others}) == 5


def test_many_threads_get_the_same(tmp_path):
    """Threads that read at once get right values, and each chunk is decoded once."""
    data = numbers((64, 8), "f4")
    zarr.create_array(tmp_path, data=data, chunks=(4, 8), shards=(16, 8))
    stored = open_array(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        for chunk, (decoded, _) in enumerate(pool.map(stored.read_chunk, list(range(16)) * 4)):
            np.testing.assert_array_equal(decoded, data[chunk % 16 * 4 : chunk % 16 * 4 + 4])
    assert (stored.stats.chunks_decoded, stored.stats.cache_hits) == (16, 48)


def test_travels_to_another_process(tmp_path):
    """A pickled array opens its store again."""
    data = numbers((10, 3), "u1")
    zarr.create_array(tmp_path, data=data, chunks=(4, 3))
    arrived = pickle.loads(pickle.dumps(open_array(tmp_path)))
    np.testing.assert_array_equal(arrived.read_chunk(2)[0], data[8:])


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_exotic_layouts_still_read(tmp_path):
    """A transpose before sharding, which the index reader does not know, goes through zarr-python and is right."""
    data = numbers((12, 6), "i4")
    inner = ShardingCodec(chunk_shape=(3, 2), codecs=[BytesCodec(), ZstdCodec()])
    array = zarr.create_array(
        tmp_path, shape=data.shape, dtype="i4", chunks=(6, 6), filters=[TransposeCodec(order=(1, 0))],
        serializer=inner, compressors=None,
    )  # fmt: skip
    array[...] = data
    stored = open_array(tmp_path)
    for chunk in range(stored.grid.num_chunks):
        first, stop = stored.grid.rows(chunk)
        np.testing.assert_array_equal(stored.read_chunk(chunk)[0], data[first:stop])


def test_what_cannot_form_a_batch_is_refused(tmp_path):
    """An array without axes and one of texts are errors that say so; so is a chunk that does not exist."""
    zarr.create_array(tmp_path / "scalar", shape=(), dtype="i4")
    with pytest.raises(DataError, match="no axis"):
        open_array(tmp_path / "scalar")
    zarr.create_array(tmp_path / "text", shape=(3,), dtype=str, zarr_format=2)
    with pytest.raises(DataError, match="strings of variable length"):
        open_array(tmp_path / "text")
    zarr.create_array(tmp_path / "ok", shape=(3,), chunks=(2,), dtype="i4")
    with pytest.raises(IndexError, match="2 chunks"):
        open_array(tmp_path / "ok").read_chunk(2)
