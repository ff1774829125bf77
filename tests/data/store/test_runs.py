"""Rows in runs of any length: read into one packed array."""

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, Runs, read_meta
from rankwise.errors import ConfigError

CODECS = {"raw": None, "zstd": ZstdCodec(), "blosc": BloscCodec(cname="lz4"), "gzip": GzipCodec()}


@pytest.fixture(scope="module", params=["kernel", "threads"])
def reader(request):
    with pytest.MonkeyPatch.context() as patch, BoxReader(threads=2, cache=2**20) as reader:
        patch.setenv("RANKWISE_DECODER", request.param)
        assert reader.decoder == request.param
        yield reader


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Arrays of one and of two axes for each codec, with their values; some chunks were never written."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    for name, codec in CODECS.items():
        for shape, chunks, shards in (((203,), (16,), (64,)), ((57, 3), (8, 2), (16, 4))):
            values = np.random.default_rng(len(made)).integers(1, 60_000, shape).astype("u2")
            uri = str(folder / f"{name}{len(shape)}.zarr")
            array = zarr.create_array(
                uri, shape=shape, dtype="u2", chunks=chunks, shards=shards, compressors=codec, fill_value=7
            )
            array[: shape[0] // 2] = values[: shape[0] // 2]
            array[-3:] = values[-3:]
            made[name, len(shape)] = read_meta(uri), array[:]
    return made


def request_for(meta, starts, runs, dtype="u4"):
    rows = np.array(starts, dtype=np.int64)
    table = np.zeros((len(rows), meta.ndim), dtype=np.int64)
    table[:, 0] = rows
    return BoxRequest(
        arrays=(meta,),
        which=np.zeros(len(rows), dtype=np.int64),
        starts=table,
        shape=(1, *meta.shape[1:]),
        dtype=np.dtype(dtype),
        runs=runs,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_are_the_rows_that_were_asked_for(reader, arrays, data):
    """Any runs, in any order, with gaps, overlapping in the array and empty ones: each row comes to its place."""
    meta, values = arrays[data.draw(st.sampled_from(sorted(CODECS))), data.draw(st.sampled_from([1, 2]))]
    starts = data.draw(st.lists(st.integers(0, len(values)), max_size=12))
    lengths = [data.draw(st.integers(0, len(values) - start)) for start in starts]
    gaps = [data.draw(st.integers(0, 3)) for _ in starts]
    order = data.draw(st.permutations(range(len(starts))))
    places, at = np.zeros(len(starts), dtype=np.int64), 0
    for run in order:
        places[run] = at
        at += lengths[run] + gaps[run]
    runs = Runs(lengths=np.array(lengths, dtype=np.int64), places=places, num_rows=at)
    plan = reader.plan(request_for(meta, starts, runs))
    out = np.full((at, *values.shape[1:]), 99_999, dtype="u4")
    wanted = out.copy()
    [report] = reader.read([(plan, out)])
    for start, length, place in zip(starts, lengths, places, strict=True):
        wanted[place : place + length] = values[start : start + length]
    np.testing.assert_array_equal(out, wanted)
    assert report.valid.all()
    assert not report.fill_boxes[np.array(lengths, dtype=np.int64) == 0].any()


def test_packed_runs_follow_each_other():
    """Without gaps, in their own order."""
    runs = Runs.packed(np.array([3, 0, 2]))
    assert (runs.places.tolist(), runs.num_rows) == ([0, 3, 3], 5)
    assert Runs.packed(np.zeros(0, dtype=np.int64)).num_rows == 0


@pytest.mark.parametrize(
    ("lengths", "places", "num_rows"),
    [([2, 2], [0, 1], 4), ([2], [3], 4), ([2], [-1], 4), ([-1], [0], 4), ([2, 1], [0, 0], 4), ([1], [9], 4)],
)
def test_rows_belong_to_one_run(lengths, places, num_rows):
    """Runs that overlap, stick out or are negative are refused, with the run."""
    with pytest.raises(ConfigError, match="runs must not overlap among the 4 rows of the output; run"):
        Runs(lengths=np.array(lengths), places=np.array(places), num_rows=num_rows)


def test_what_does_not_fit_is_refused(arrays):
    """A run past the end of the array, a missing length, tables of another dtype."""
    meta, values = arrays["raw", 1]
    with pytest.raises(ConfigError, match=f"covers elements 200 to 203 of axis 0 .* which has {len(values)}"):
        request_for(meta, [200], Runs.packed(np.array([4])))
    with pytest.raises(ConfigError, match="a length for each of the 2 boxes"):
        request_for(meta, [0, 1], Runs.packed(np.array([4])))
    with pytest.raises(ConfigError, match=r"places of runs must be int64\[1\], got int32"):
        Runs(lengths=np.array([1]), places=np.array([0], dtype="i4"), num_rows=1)


def test_damage_is_told_for_the_runs_that_it_touches(tmp_path):
    """A damaged chunk spoils the runs that need it and no other."""
    uri = tmp_path / "a.zarr"
    zarr.create_array(str(uri), data=np.arange(64, dtype="u4"), chunks=(16,), compressors=ZstdCodec(checksum=True))
    chunk = uri / "c" / "1"
    spoiled = bytearray(chunk.read_bytes())
    spoiled[-1] ^= 1
    chunk.write_bytes(spoiled)
    with BoxReader() as reader:
        runs = Runs.packed(np.array([4, 20, 0, 8]))
        plan = reader.plan(request_for(read_meta(str(uri)), [2, 10, 20, 40], runs))
        out = np.zeros(32, dtype="u4")
        [report] = reader.read([(plan, out)])
    assert report.valid.tolist() == [True, False, True, True]
    assert report.errors[0].box == 1
    assert report.errors[0].damage
    assert out[:4].tolist() == [2, 3, 4, 5]
    assert out[24:].tolist() == list(range(40, 48))
