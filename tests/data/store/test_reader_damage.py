"""Damage is told with its place, and touches no other box."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.errors import ConfigError

CODECS = {
    "zstd": [ZstdCodec(level=1)],
    "zstd+checksum": [ZstdCodec(level=1, checksum=True)],
    "blosc": [BloscCodec(cname="zstd")],
    "gzip": [GzipCodec()],
    "raw": None,
}


def array(root, codec="zstd", *, sharded=True, num=8):
    """An array [num, 64] of num chunks of one row."""
    made = zarr.create_array(
        root, shape=(num, 64), chunks=(1, 64), shards=(4, 64) if sharded else None, dtype="u2", overwrite=True,
        compressors=CODECS[codec], fill_value=9,
    )  # fmt: skip
    made[...] = np.arange(num * 64).reshape(num, 64) % 50
    return read_meta(str(root))


def rows(meta, *wanted, dtype="u2"):
    starts = np.array([[row, 0] for row in wanted], np.int64)
    return BoxRequest(
        arrays=(meta,), which=np.zeros(len(wanted), np.int64), starts=starts, shape=(1, 64), dtype=np.dtype(dtype)
    )


def read(reader, request):
    out = np.zeros((len(request), *request.shape), request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    return out, report


def chunk_range(meta, row):
    with BoxReader(threads=1) as reader:
        plan = reader.plan(rows(meta, row))
        return plan.files[0].path, int(plan.chunks.offset[0]), int(plan.chunks.length[0])


@pytest.mark.parametrize("codec", ["zstd+checksum", "blosc", "gzip"])
@pytest.mark.parametrize("sharded", [True, False])
def test_overwritten_bytes_are_told(tmp_path, codec, sharded):
    """Garbage in one chunk: its sample is reported with array, chunk, bytes and file; the others arrive."""
    meta = array(tmp_path / "a", codec, sharded=sharded)
    path, offset, length = chunk_range(meta, 2)
    with Path(path).open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))
    with BoxReader(threads=1, cache=0) as reader:
        out, report = read(reader, rows(meta, 1, 2, 3))
    assert report.valid.tolist() == [True, False, True]
    (error,) = report.errors
    assert error.box == 1
    assert error.damage
    assert "chunk (2, 0)" in str(error.error)
    assert str(tmp_path / "a") in str(error.error)
    if codec != "gzip":
        assert f"bytes {offset} to {offset + length - 1}" in str(error.error)
    np.testing.assert_array_equal(out[0, 0], np.arange(64, 128) % 50)


def test_a_cut_file_is_told(tmp_path):
    """A file that ends inside a chunk: short read, not zeros."""
    meta = array(tmp_path / "a", "raw", sharded=False)
    os.truncate(tmp_path / "a" / "c" / "3" / "0", 100)
    with BoxReader(threads=1) as reader:
        _, report = read(reader, rows(meta, 2, 3))
    assert report.valid.tolist() == [True, False]


def test_a_cut_shard_is_told(tmp_path):
    """A shard cut at its end has no index: every chunk of it fails, those of other shards do not."""
    meta = array(tmp_path / "a")
    path = tmp_path / "a" / "c" / "1" / "0"
    os.truncate(path, path.stat().st_size - 30)
    with BoxReader(threads=1) as reader:
        _, report = read(reader, rows(meta, 0, 4, 5))
    assert report.valid.tolist() == [True, False, False]
    assert "index" in str(report.errors[0].error)
    assert str(path) in str(report.errors[0].error)


@pytest.mark.parametrize("how", ["replaced", "written to"])
def test_a_file_that_changes_while_open_is_told(tmp_path, how):
    """A shard that another writer replaces or changes after its index was read: an error, no mixture."""
    meta = array(tmp_path / "a")
    with BoxReader(threads=1, cache=0) as reader:
        plan = reader.plan(rows(meta, 0, 5))
        path = tmp_path / "a" / "c" / "0" / "0"
        if how == "replaced":
            shutil.copy(path, tmp_path / "copy")
            (tmp_path / "copy").replace(path)
        else:
            os.utime(path)
        (report,) = reader.read([(plan, np.zeros((2, 1, 64), "u2"))])
    assert report.valid.tolist() == [False, True]
    assert "replaced or changed" in str(report.errors[0].error)


def test_values_that_do_not_fit_fail_their_boxes_only(tmp_path):
    """Checked narrowing: the box with the large value is reported; it is no damage, so nothing may skip it."""
    made = zarr.create_array(tmp_path / "a", shape=(8, 64), chunks=(8, 64), dtype="u2")
    made[...] = 7
    made[3, 5] = 300
    meta = read_meta(str(tmp_path / "a"))
    with BoxReader(threads=1) as reader:
        out, report = read(reader, rows(meta, 2, 3, 4, dtype="u1"))
    assert report.valid.tolist() == [True, False, True]
    assert not report.errors[0].damage
    assert "wider dtype" in str(report.errors[0].error)
    assert (out[[0, 2]] == 7).all()


def test_a_missing_file_is_the_fill_value_and_counted(tmp_path):
    """Shards that were never written are the fill value, and boxes of nothing else are named."""
    meta = array(tmp_path / "a")
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    with BoxReader(threads=1) as reader:
        out, report = read(reader, rows(meta, 3, 4))
    assert report.fill_chunks == 1
    assert report.fill_boxes.tolist() == [False, True]
    assert (out[1] == 9).all()


def test_an_array_that_has_gone_is_an_error(tmp_path):
    """A store that was moved or unmounted is not taken for one full of fill values."""
    meta = array(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    with BoxReader(threads=1) as reader:
        _, report = read(reader, rows(meta, 3))
    assert not report.valid.any()
    assert "was moved, deleted or unmounted after it was opened" in str(report.errors[0].error)
    assert not report.errors[0].damage


def test_each_chunk_is_decoded_once(tmp_path):
    """Boxes that share chunks share their decoding; a chunk that comes back is kept from its second time on."""
    meta = array(tmp_path / "a", sharded=False, num=4)
    with BoxReader(threads=2) as reader:
        _, report = read(reader, rows(meta, 1, 1, 2, 1))
        assert report.fast_chunks == 2
        _, report = read(reader, rows(meta, 1))
        assert (report.fast_chunks, report.cached_chunks) == (1, 0)
        _, report = read(reader, rows(meta, 1))
        assert (report.fast_chunks, report.cached_chunks) == (0, 1)
        assert reader.stats.fast_chunks == 3
        assert reader.stats.boxes == 6


def test_many_files_need_few_handles(tmp_path):
    """An array of more files than may be open at once is read all the same."""
    meta = array(tmp_path / "a", sharded=False, num=40)
    with BoxReader(threads=2, max_open_files=3) as reader:
        out, report = read(reader, rows(meta, *range(40)))
        assert report.valid.all()
        assert len(reader.handles) <= 3
    np.testing.assert_array_equal(out[:, 0], np.arange(40 * 64).reshape(40, 64) % 50)


def test_everything_is_kept_if_asked_for(tmp_path):
    """With keep="all" a chunk is decoded once though it comes but twice; `needed` says what is left to decode."""
    meta = array(tmp_path / "a", sharded=False, num=4)
    with BoxReader(threads=1, keep="all") as reader:
        plan = reader.plan(rows(meta, 1, 2))
        assert reader.needed(plan).tolist() == [True, True]
        read(reader, rows(meta, 1))
        assert reader.needed(plan).tolist() == [False, True]
        _, report = read(reader, rows(meta, 1, 2))
        assert (report.fast_chunks, report.cached_chunks) == (1, 1)
    with pytest.raises(ConfigError, match="repeats, all"):
        BoxReader(keep="some")
