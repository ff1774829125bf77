"""`ArraySource`: samples of Zarr and NumPy arrays, against `array[i]`."""

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.samples import ArraySource
from rankwise.data.store import ChunkCache, read_meta
from rankwise.errors import ConfigError, DataError, SampleError
from rankwise.testing.shares import share_of
from rankwise.testing.small import PlainMemory

COMPRESSORS = {"zstd": [ZstdCodec(level=1)], "blosc": [BloscCodec(cname="lz4")], "gzip": [GzipCodec()], "raw": None}


def read(source, ids):
    buffer = PlainMemory()
    plan = source.plan(share_of(ids))
    source.hint(plan)
    report = source.read(plan, buffer)
    return {name: buffer.arrays(name)[0] for name in source.fields}, report, plan


@st.composite
def columns(draw, num_samples, folder):
    """An array for a field: NumPy, or Zarr of any layout; with the data it holds."""
    shape = (num_samples, *(draw(st.integers(1, 5)) for _ in range(draw(st.integers(0, 2)))))
    dtype = draw(st.sampled_from(["u1", "<i2", "<f4", "<f8", "?", ">i4"]))
    data = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    kind = draw(st.sampled_from(["numpy", "v2", "v3", "sharded"]))
    if kind == "numpy":
        return data, data
    chunks = tuple(draw(st.integers(1, 6)) for _ in shape)
    options = {"shape": shape, "chunks": chunks, "dtype": dtype}
    if kind == "v2":
        options["zarr_format"] = 2
    else:
        options["compressors"] = COMPRESSORS[draw(st.sampled_from(sorted(COMPRESSORS)))]
    if kind == "sharded":
        options["shards"] = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    store = folder / str(len(list(folder.iterdir()))) if draw(st.booleans()) else zarr.storage.MemoryStore()
    array = zarr.create_array(store, **options)
    array[...] = data
    return array, data


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_batch_is_array_of_its_ids(tmp_path_factory, data):
    """Random shapes, dtypes, chunks, shards, codecs, mixed fields, repeated and unsorted ids: byte for byte."""
    num_samples = data.draw(st.integers(1, 40))
    folder = tmp_path_factory.mktemp("stores")
    fields = {name: data.draw(columns(num_samples, folder)) for name in "abc"[: data.draw(st.integers(1, 3))]}
    source = ArraySource(
        {name: array for name, (array, _) in fields.items()}, cache=data.draw(st.sampled_from([0, 200, 10**6]))
    )
    for _ in range(2):
        ids = data.draw(st.lists(st.integers(0, num_samples - 1), max_size=20))
        got, report, _ = read(source, ids)
        assert report.valid.all()
        assert report.valid.shape == (len(ids),)
        for name, (_, wanted) in fields.items():
            assert got[name].dtype.isnative
            assert got[name].shape == (len(ids), *wanted.shape[1:])
            np.testing.assert_array_equal(got[name], wanted[ids])


def test_each_chunk_is_decoded_once_per_batch(tmp_path):
    """A batch that touches a chunk many times decodes it once, also without a cache; the plan says so beforehand."""
    data = np.arange(64 * 4).reshape(64, 4)
    zarr.create_array(tmp_path, data=data, chunks=(8, 2), shards=(32, 4))
    source = ArraySource({"x": tmp_path}, cache=0)
    ids = np.random.default_rng(0).integers(0, 40, 200)
    got, report, plan = read(source, ids)
    np.testing.assert_array_equal(got["x"], data[ids])
    assert report.fast_chunks == source.stats.chunks_decoded == plan.num_chunks == 10
    assert plan.read_bytes == source.stats.read_bytes > 0
    assert plan.decode_bytes == source.stats.decoded_bytes == 40 * 4 * 8


def test_what_is_cached_costs_nothing(tmp_path):
    """A second batch of the same chunks plans and decodes none."""
    zarr.create_array(tmp_path, data=np.arange(64), chunks=(8,))
    source = ArraySource({"x": tmp_path})
    read(source, [0, 9])
    _, report, plan = read(source, [1, 10])
    assert (plan.num_chunks, plan.read_bytes, plan.decode_bytes, report.fast_chunks) == (0, 0, 0, 0)
    assert source.stats.cached_chunks == 2


def test_samples_by_index(tmp_path):
    """`len` and `source[i]` show samples; indices end; the sample is a copy."""
    data = np.arange(12).reshape(6, 2)
    zarr.create_array(tmp_path, data=data, chunks=(4, 2))
    source = ArraySource({"x": tmp_path, "y": np.arange(6) * 10})
    assert len(source) == 6
    assert source[4]["x"].tolist() == [8, 9]
    assert source[-1]["y"] == 50
    with pytest.raises(IndexError, match="no sample 6: the source has 6"):
        source[6]
    source[0]["x"][:] = -1
    assert source[0]["x"].tolist() == [0, 1]
    assert [int(sample["y"]) for sample in source] == [0, 10, 20, 30, 40, 50]


def test_groups_open_by_field(tmp_path):
    """All arrays by name, some of them, or renamed; inner groups by path."""
    group = zarr.create_group(tmp_path)
    group.create_array("image", data=np.zeros((5, 2, 2), "f4"))
    group.create_group("meta").create_array("label", data=np.arange(5))
    assert list(ArraySource.open(tmp_path).fields) == ["image", "meta/label"]
    assert list(ArraySource.open(str(tmp_path), fields=["image"]).fields) == ["image"]
    renamed = ArraySource.open(tmp_path, fields={"y": "meta/label"})
    assert renamed[3]["y"] == 3
    assert repr(renamed) == "ArraySource(5 samples; y: int64[])"


def test_arrays_of_all_kinds(tmp_path):
    """Zarr arrays, opened ones, paths, metadata and memory-mapped .npy files are taken."""
    data = np.arange(20).reshape(10, 2)
    array = zarr.create_array(tmp_path / "a", data=data, chunks=(3, 2))
    np.save(tmp_path / "b.npy", data)
    fields = {
        "array": array, "path": str(tmp_path / "a"), "npy": tmp_path / "b.npy", "meta": read_meta(tmp_path / "a"),
    }  # fmt: skip
    source = ArraySource(fields)
    got, _, _ = read(source, [7, 2, 2])
    for name in fields:
        np.testing.assert_array_equal(got[name], data[[7, 2, 2]])


def test_locality_is_that_of_the_longest_chunks(tmp_path):
    """chunk_samples is the longest chunk of the Zarr fields, at most the samples; 1 for what is in memory."""
    zarr.create_array(tmp_path / "a", data=np.arange(100), chunks=(16,))
    zarr.create_array(tmp_path / "b", data=np.arange(100), chunks=(10,), shards=(50,))
    zarr.create_array(tmp_path / "c", shape=(100,), dtype="i4", chunks=(1000,))
    memory = np.arange(100)
    assert ArraySource({"a": tmp_path / "a", "b": tmp_path / "b", "m": memory}).locality.chunk_samples == 16
    assert ArraySource({"c": tmp_path / "c"}).locality.chunk_samples == 100
    assert ArraySource({"m": memory}).locality.chunk_samples == 1
    np.save(tmp_path / "m.npy", np.zeros((5000, 1024), "f4"))
    assert ArraySource({"m": tmp_path / "m.npy"}).locality.chunk_samples == 256


def test_fingerprint_follows_the_data(tmp_path):
    """Equal for a copy at another path and for fewer fields of it; different for other numbers of the same shape."""
    data = np.random.default_rng(0).normal(size=(50, 8))
    zarr.create_array(tmp_path / "a", data=data)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    source = ArraySource({"x": tmp_path / "a", "y": np.arange(50)})
    assert ArraySource({"x": tmp_path / "b", "y": np.arange(50)}).fingerprint == source.fingerprint
    assert ArraySource({"x": tmp_path / "b", "y": np.arange(50)[::-1]}).fingerprint != source.fingerprint
    assert source.select(["x"]).fingerprint == source.fingerprint


def test_select_shares_everything_else(tmp_path):
    """A source of fewer fields has the same cache and statistics; unknown fields are listed."""
    zarr.create_array(tmp_path, data=np.arange(10), chunks=(5,))
    source = ArraySource({"x": tmp_path, "y": np.arange(10)})
    fewer = source.select(["x"])
    assert list(read(fewer, [3])[0]) == ["x"]
    assert source.stats.chunks_decoded == 1
    assert fewer.cache is source.cache
    with pytest.raises(ConfigError, match=r"has the fields x, y; asked for \['z'\]"):
        source.select(["z"])


def test_sources_share_a_cache(tmp_path):
    """A ChunkCache given to two sources caps both together and does not mix them up."""
    for name, start in (("a", 0), ("b", 100)):
        zarr.create_array(tmp_path / name, data=np.arange(start, start + 8), chunks=(4,))
    cache = ChunkCache(64)
    first, second = (ArraySource({"x": tmp_path / name}, cache=cache) for name in "ab")
    assert [int(first[0]["x"]), int(second[0]["x"]), int(first[5]["x"])] == [0, 100, 5]
    assert (cache.kept_bytes, len(cache)) == (64, 2)  # of three chunks


def test_travels_to_workers(tmp_path):
    """A pickled source reads the same samples."""
    zarr.create_array(tmp_path, data=np.arange(10), chunks=(5,))
    source = ArraySource({"x": tmp_path, "y": np.arange(10)})
    arrived = pickle.loads(pickle.dumps(source))
    assert arrived[7] == source[7]
    assert (arrived.fingerprint, dict(arrived.fields)) == (source.fingerprint, dict(source.fields))


def test_damaged_samples_are_reported_and_others_read(tmp_path):
    """A cut file makes the samples of its chunk invalid, each with an error that names sample, store and chunk."""
    data = np.random.default_rng(0).integers(0, 9, (12, 4))
    zarr.create_array(tmp_path, data=data, chunks=(4, 4))
    (tmp_path / "c" / "1" / "0").write_bytes(b"nonsense")
    source = ArraySource({"x": tmp_path})
    got, report, _ = read(source, [1, 6, 11, 4])
    assert report.valid.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(got["x"][[0, 2]], data[[1, 11]])
    assert sorted(error.sample for error in report.errors) == [4, 6]
    text = str(report.errors[0])
    assert f"sample {report.errors[0].sample} cannot be read" in text
    assert f"chunk (1, 0) of the array {tmp_path}" in text
    assert report.errors[0].damage
    with pytest.raises(SampleError, match="sample 5 cannot be read"):
        source[5]


def test_missing_chunks_fill_or_fail(tmp_path):
    """Chunks that were never written are the fill value and counted; with missing="error" they are errors."""
    array = zarr.create_array(tmp_path, shape=(8,), chunks=(4,), dtype="i4", fill_value=7)
    array[:4] = 1
    got, report, _ = read(ArraySource({"x": tmp_path}), [0, 5])
    assert (got["x"].tolist(), report.fill_chunks) == ([1, 7], 1)
    source = ArraySource({"x": tmp_path}, missing="error")
    _, report, _ = read(source, [0, 5])
    assert report.valid.tolist() == [True, False]
    assert "chunk (1,) of the array" in str(report.errors[0])
    assert "missing='fill'" in str(report.errors[0])


def test_many_threads_get_the_same(tmp_path):
    """Threads that read through one source at once get right values, in memory that nobody else touches."""
    data = np.random.default_rng(0).integers(0, 99, (64, 8)).astype("f4")
    zarr.create_array(tmp_path, data=data, chunks=(4, 8), shards=(16, 8))
    source = ArraySource({"x": tmp_path}, threads=2, cache=1000)
    batches = [np.random.default_rng(seed).integers(0, 64, 20) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for ids, (got, report, _) in zip(batches, pool.map(lambda ids: read(source, ids), batches), strict=True):
            assert report.valid.all()
            np.testing.assert_array_equal(got["x"], data[ids])


def test_all_fields_are_read_at_once(tmp_path):
    """One call of the engine reads the whole batch, so that its threads share the work of all fields."""
    for name in "ab":
        zarr.create_array(tmp_path / name, data=np.arange(8), chunks=(4,))
    source = ArraySource({name: tmp_path / name for name in "ab"} | {"memory": np.arange(8)})
    calls = []
    engine_read = source.reader.read
    source.reader.read = lambda jobs: calls.append(len(jobs)) or engine_read(jobs)
    got, _, _ = read(source, [5, 1])
    assert calls == [2]
    assert {name: values.tolist() for name, values in got.items()} == {name: [5, 1] for name in ("a", "b", "memory")}


def test_what_cannot_be_a_source_is_refused(tmp_path):
    """No arrays, unequal lengths (listed), nothing in them, objects, a scalars, tensors, missing arrays."""
    with pytest.raises(ConfigError, match="at least one array"):
        ArraySource({})
    with pytest.raises(ConfigError, match="'a' has 3, 'b' has 4"):
        ArraySource({"a": np.zeros(3), "b": np.zeros(4)})
    with pytest.raises(ConfigError, match="at least one sample; 'a' has 0"):
        ArraySource({"a": np.zeros((0, 3))})
    with pytest.raises(ConfigError, match="dtype object"):
        ArraySource({"a": np.array([None, 1])})
    with pytest.raises(ConfigError, match="a scalar"):
        ArraySource({"a": np.array(1)})
    with pytest.raises(ConfigError, match=r"'a' is a masked array.* array\.filled\(value\)"):
        ArraySource({"a": np.ma.masked_array([1.0, -999.0], mask=[False, True])})
    with pytest.raises(ConfigError, match=r"builtins\.list.*DatasetLoader"):
        ArraySource({"a": [1, 2]})
    with pytest.raises(ConfigError, match="'fill' or 'error'"):
        ArraySource({"a": np.zeros(3)}, missing="skip")
    zarr.create_group(tmp_path).create_array("x", data=np.arange(3))
    with pytest.raises(DataError, match="no array 'y'; it holds 'x'"):
        ArraySource.open(tmp_path, fields=["x", "y"])
    with pytest.raises(ConfigError, match=r"fields=\['x'\]"):
        ArraySource.open(tmp_path, fields="x")
    (tmp_path / "bad.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"bad\.npy"):
        ArraySource({"a": tmp_path / "bad.npy"})
    with pytest.raises(IndexError, match="asks for samples -1 to 3"):
        ArraySource({"a": np.zeros(3)}).plan(share_of([-1, 3]))
