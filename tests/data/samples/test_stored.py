"""Rows of Zarr arrays: what they cost, and what they look like in any store."""

import os
import shutil
import tracemalloc

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

from rankwise.data.samples import ArraySource
from rankwise.testing.shares import share_of
from rankwise.testing.small import PlainMemory


def read(source, ids):
    buffer = PlainMemory()
    report = source.read(source.plan(share_of(ids)), buffer)
    assert report.valid.all(), report.errors
    return {name: buffer.arrays(name)[0] for name in source.fields}, report


@pytest.mark.parametrize("codec", [ZstdCodec(level=1), GzipCodec(level=1)])
@pytest.mark.parametrize("cached", [0, 6])
def test_memory_is_bounded_by_a_chunk_for_each_thread(tmp_path, codec, cached):
    """Rows of many chunks: no more than the cache and a few decoded chunks a thread are held beside the batch."""
    num, chunk_bytes = 24, 2**20
    array = zarr.create_array(
        tmp_path, shape=(num * 64, 128, 128), chunks=(64, 128, 128), dtype="u1", compressors=[codec]
    )
    for first in range(0, num * 64, 64):
        array[first : first + 64] = first // 64 + 1
    with ArraySource({"x": tmp_path}, cache=cached * chunk_bytes, threads=2) as source:
        read(source, [0])
        tracemalloc.start()
        got, _ = read(source, range(1, num * 64, 64))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert got["x"][:, 5, 5].tolist() == list(range(1, num + 1))
    assert peak < got["x"].nbytes + (cached + 2 * 5) * chunk_bytes


def test_statistics_count_what_was_read(tmp_path):
    """Chunks decoded, found in the cache and missing, encoded and decoded bytes are exact for a local store."""
    array = zarr.create_array(tmp_path, shape=(20, 4), chunks=(5, 2), shards=(10, 4), dtype="i4", compressors=None)
    array[:5] = 1
    array[5:10, :2] = 2
    source = ArraySource({"x": tmp_path})
    for row in (0, 5, 10, 0):
        source[row]
    stats = source.stats
    assert (stats.chunks_decoded, stats.fast_chunks, stats.slow_chunks) == (3, 3, 0)
    assert (stats.cached_chunks, stats.fill_chunks) == (2, 1 + 2)
    assert (stats.read_bytes, stats.decoded_bytes) == (3 * 5 * 2 * 4, 3 * 5 * 2 * 4)


def test_a_hint_is_about_what_is_not_cached(tmp_path, monkeypatch):
    """The engine is asked to hint the chunks of all fields, and leaves out those that are cached."""
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, length, _advice: asked.append((offset, length)))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)  # as if nothing lay in memory
    for name in "xy":
        zarr.create_array(tmp_path / name, data=np.arange(64).reshape(16, 4), chunks=(2, 4), compressors=None)
    source = ArraySource({"x": tmp_path / "x", "y": tmp_path / "y"})
    plan = source.plan(share_of([6, 0]))
    source.hint(plan)
    assert asked == [(0, 64)] * 4
    read(source, [6, 0])
    asked.clear()
    source.hint(plan)
    assert asked == []


def test_fingerprint_belongs_to_the_data(tmp_path):
    """Equal for a copy elsewhere; different for other data, length, chunks or dtype. The value never changes."""

    def made(name, data, **options):
        zarr.create_array(tmp_path / name, data=data, **options)
        return ArraySource({"x": tmp_path / name}).fingerprint

    data = np.random.default_rng(0).integers(0, 200, (50, 30)).astype("i4")
    first = made("a", data, chunks=(10, 30))
    shutil.copytree(tmp_path / "a", tmp_path / "moved" / "b")
    assert ArraySource({"x": tmp_path / "moved" / "b"}).fingerprint == first
    others = [
        made("other", np.zeros_like(data) + np.arange(30, dtype="i4"), chunks=(10, 30)),
        made("longer", np.concatenate([data, data[:1]]), chunks=(10, 30)),
        made("chunked", data, chunks=(5, 30)),
        made("typed", data.astype("i8"), chunks=(10, 30)),
        made("sharded", data, chunks=(10, 30), shards=(50, 30)),
    ]
    assert len({first, *others}) == 6
    # runs of earlier versions resume: of raw bytes, whose sizes no library changes
    assert made("raw", data, chunks=(10, 30), compressors=None) == GOLDEN["raw"]
    assert made("raw-shards", data, chunks=(10, 30), shards=(20, 30), compressors=None) == GOLDEN["raw-shards"]


GOLDEN = {"raw": "5f8007b8ce3cd1b8", "raw-shards": "d93f91369d5c60fa"}


@pytest.mark.parametrize(
    ("dtype", "zarr_format"),
    [("S5", 2), ("U3", 2), ("datetime64[s]", 3), ([("a", "i4"), ("b", "f8")], 2), ("c16", 3), ("f2", 3), ("?", 3)],
)
def test_rows_of_any_dtype(tmp_path, dtype, zarr_format):
    """What NumPy holds in fixed width comes out as it is, where it was written and where it was not."""
    data = np.random.default_rng(0).integers(1, 3, (10, 4)).astype("i4")
    data = np.array([tuple([int(x)] * 2) for x in data.ravel()], dtype).reshape(10, 4) if isinstance(dtype, list) else (
        data.astype(dtype)
    )  # fmt: skip
    array = zarr.create_array(tmp_path, shape=data.shape, dtype=data.dtype, chunks=(2, 3), zarr_format=zarr_format)
    array[:6] = data[:6]
    got, report = read(ArraySource({"x": tmp_path}), [5, 0, 9, 5])
    assert got["x"].dtype == data.dtype
    assert got["x"].tobytes() == array[:][[5, 0, 9, 5]].tobytes()
    assert report.fill_chunks == 2


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_exotic_layouts_still_read(tmp_path):
    """A transpose before sharding, which the index reader does not know, goes through zarr-python and is right."""
    data = np.random.default_rng(0).integers(0, 200, (12, 6)).astype("i4")
    inner = ShardingCodec(chunk_shape=(3, 2), codecs=[BytesCodec(), ZstdCodec()])
    array = zarr.create_array(
        tmp_path, shape=data.shape, dtype="i4", chunks=(6, 6), filters=[TransposeCodec(order=(1, 0))],
        serializer=inner, compressors=None,
    )  # fmt: skip
    array[...] = data
    got, report = read(ArraySource({"x": tmp_path}), [11, 3, 7])
    np.testing.assert_array_equal(got["x"], data[[11, 3, 7]])
    assert report.slow_chunks > 0
    assert report.fast_chunks == 0


def test_rows_without_elements(tmp_path):
    """Rows of shape [3, 0] hold nothing and are read without asking anybody."""
    zarr.create_array(tmp_path, shape=(5, 3, 0), chunks=(2, 3, 1), dtype="f4")
    source = ArraySource({"x": tmp_path, "y": np.arange(5)})
    got, _ = read(source, [4, 1])
    assert got["x"].shape == (2, 3, 0)
    assert got["y"].tolist() == [4, 1]
    assert source[0]["x"].shape == (3, 0)
