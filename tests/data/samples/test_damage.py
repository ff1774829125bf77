"""Damaged stores on a real disk: found, named, and never taken for data."""

import pickle

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec

from rankwise.data.samples import ArraySource
from rankwise.errors import SampleError

DATA = np.random.default_rng(0).integers(1, 50, (32, 8, 8)).astype("uint16")  # no zeros: the fill value shows
ROWS = range(0, 32, 4)  # one of each chunk
LAYOUTS = {
    "sharded-zstd": {"chunks": (4, 8, 8), "shards": (16, 8, 8), "compressors": [ZstdCodec()]},
    "sharded-raw": {"chunks": (4, 8, 8), "shards": (16, 8, 8), "compressors": None},
    "sharded-crc": {"chunks": (4, 8, 8), "shards": (16, 8, 8), "compressors": [ZstdCodec(), Crc32cCodec()]},
    "sharded-gzip": {"chunks": (4, 8, 8), "shards": (16, 8, 8), "compressors": [GzipCodec()]},
    "index-at-start": {
        "chunks": (16, 8, 8),
        "serializer": ShardingCodec(chunk_shape=(4, 8, 8), codecs=[BytesCodec(), ZstdCodec()], index_location="start"),
        "compressors": None,
    },
    "zstd": {"chunks": (4, 8, 8), "compressors": [ZstdCodec()]},
    "zstd-checked": {"chunks": (4, 8, 8), "compressors": [ZstdCodec(checksum=True)]},
    "blosc": {"chunks": (4, 8, 8), "compressors": [BloscCodec(cname="zstd")]},
    "raw": {"chunks": (4, 8, 8), "compressors": None},
    "version-2": {"chunks": (4, 8, 8), "zarr_format": 2},
}


def written(path, layout):
    array = zarr.create_array(path, shape=DATA.shape, dtype=DATA.dtype, **LAYOUTS[layout])
    array[...] = DATA
    return path


def last_file(path):
    return max(file for file in path.rglob("*") if file.is_file() and "zarr" not in file.name and file.name[0] != ".")


def outcome(path):
    """For one sample of each chunk: 'good', 'fill' or the error; anything else is data that was never written."""
    source = ArraySource({"x": path}, cache=0, threads=1)
    found = []
    for row in ROWS:
        try:
            sample = source[row]["x"]
        except SampleError as error:
            found.append(str(error) if error.damage and error.sample == row else "wrong")
        else:
            found.append("good" if (sample == DATA[row]).all() else "fill" if not sample.any() else "wrong")
    return found, source.stats.fill_chunks


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("left", [0.0, 0.5, 0.9])
def test_a_cut_file_is_an_error(tmp_path, layout, left):
    """A truncated shard or chunk is an error, never the fill value and never garbage; other chunks stay readable."""
    file = last_file(written(tmp_path / "a", layout))
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * left)])
    found, num_filled = outcome(tmp_path / "a")
    assert found[:3] == ["good"] * 3
    assert found[-1] not in ("good", "fill", "wrong")
    assert not {"fill", "wrong"} & set(found)
    assert num_filled == 0
    assert str(tmp_path / "a") in found[-1]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_missing_file_is_the_fill_value_and_counted(tmp_path, layout):
    """Zarr leaves out what was never written: such chunks read as the fill value, and the statistics say how many."""
    last_file(written(tmp_path / "a", layout)).unlink()
    found, num_filled = outcome(tmp_path / "a")
    assert set(found) == {"good", "fill"}
    assert num_filled == found.count("fill")


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_missing_file_is_an_error_if_asked_for(tmp_path, layout):
    """With missing="error" exactly the samples of chunks that are not there fail, and say which array lacks them."""
    last_file(written(tmp_path / "a", layout)).unlink()
    found, _ = outcome(tmp_path / "a")
    source = ArraySource({"x": tmp_path / "a"}, missing="error")
    for row, was in zip(ROWS, found, strict=True):
        if was == "good":
            np.testing.assert_array_equal(source[row]["x"], DATA[row])
        else:
            with pytest.raises(SampleError, match=r"chunk \(\d, 0, 0\) of the array .*missing='fill'"):
                source[row]


@pytest.mark.parametrize("layout", ["sharded-crc", "sharded-gzip", "zstd-checked"])
def test_a_flipped_bit_is_an_error_where_the_codec_checks(tmp_path, layout):
    """Codecs with a checksum turn any flipped bit of a chunk into an error that names store, array and chunk."""
    file = last_file(written(tmp_path / "a", layout))
    good = file.read_bytes()
    index = 0 if layout == "zstd-checked" else 4 * 16 + 4  # the shard's index, checked by its own test
    for place in np.random.default_rng(1).integers(20, len(good) - index, 12).tolist():
        flipped = bytearray(good)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(bytes(flipped))
        found, _ = outcome(tmp_path / "a")
        bad = [text for text in found if text != "good"]
        assert len(bad) == 1, place
        assert "wrong" not in bad
        assert f"array {tmp_path / 'a'}" in bad[0]
        assert "chunk" in bad[0]


@pytest.mark.parametrize("layout", ["sharded-zstd", "index-at-start"])
def test_any_flipped_bit_of_a_shard_index_is_an_error(tmp_path, layout):
    """The index has a CRC-32C: a damaged one names the file, and is not followed anywhere."""
    file = last_file(written(tmp_path / "a", layout))
    good = file.read_bytes()
    begin = 0 if layout == "index-at-start" else len(good) - 68
    for place in range(begin, begin + 68, 7):
        flipped = bytearray(good)
        flipped[place] ^= 4
        file.write_bytes(bytes(flipped))
        found, _ = outcome(tmp_path / "a")
        assert all("checksum" in text and str(file) in text for text in found[4:]), place


@pytest.mark.parametrize("layout", ["zstd", "sharded-zstd"])
def test_something_else_in_the_place_of_a_file_is_an_error(tmp_path, layout):
    """A folder where a file belongs is not taken for a chunk that was never written."""
    file = last_file(written(tmp_path / "a", layout))
    file.unlink()
    file.mkdir()
    found, num_filled = outcome(tmp_path / "a")
    assert str(file) in found[-1]
    assert (num_filled, "fill" in found) == (0, False)


def test_a_damaged_chunk_is_never_kept(tmp_path):
    """What could not be decoded does not enter the cache: every try says so again."""
    last_file(written(tmp_path / "a", "zstd")).write_bytes(b"nonsense")
    source = ArraySource({"x": tmp_path / "a"})
    for _ in range(3):
        with pytest.raises(SampleError, match="is damaged"):
            source[30]
    assert source.cache.kept_bytes == 0
    np.testing.assert_array_equal(source[0]["x"], DATA[0])
    assert source.cache.kept_bytes == 4 * 8 * 8 * 2


@pytest.mark.parametrize("layout", ["zstd", "sharded-zstd"])
def test_an_array_that_went_away_is_no_damage(tmp_path, layout):
    """When a mount disappears, missing files are not taken for fill values, and no budget of skips is spent on it."""
    source = ArraySource({"x": written(tmp_path / "a", layout)}, cache=0)
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(SampleError, match="was moved, deleted or unmounted after it was opened") as caught:
        source[0]
    assert not caught.value.damage


def test_sample_errors_travel():
    """A SampleError keeps its attributes through pickle, as it must from a worker or another rank."""
    arrived = pickle.loads(pickle.dumps(SampleError("broken", sample=7, place="chunk 3", damage=False)))
    assert (str(arrived), arrived.sample, arrived.place, arrived.damage) == ("broken", 7, "chunk 3", False)
