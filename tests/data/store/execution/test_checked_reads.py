"""What only zarr-python decodes: frames and shards that were cut are told, not read beyond their end."""

from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec, TransposeCodec
from zarr.storage import LocalStore

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.execution.checked_reads import CheckedStore

DATA = np.random.default_rng(4).integers(0, 60_000, (8, 30)).astype("u2")
BLOSC = BloscCodec(cname="lz4", shuffle="noshuffle")
LAYOUTS = {
    "v2 in Fortran's order": {
        "zarr_format": 2, "order": "F", "chunks": (4, 30), "compressors": numcodecs.Blosc("lz4", 5, 0)
    },
    "v2 behind a filter": {
        "zarr_format": 2, "chunks": (4, 30), "compressors": None,
        "filters": [numcodecs.Delta("<u2"), numcodecs.Blosc("lz4", 5, 0)],
    },
    "big-endian": {"chunks": (4, 30), "serializer": BytesCodec(endian="big"), "compressors": BLOSC},
    "transposed": {"chunks": (4, 30), "filters": [TransposeCodec(order=(1, 0))], "compressors": BLOSC},
    "shards in shards": {
        "chunks": (8, 30), "compressors": None,
        "serializer": ShardingCodec(
            chunk_shape=(4, 30), codecs=[ShardingCodec(chunk_shape=(4, 30), codecs=[BytesCodec(), BLOSC])]
        ),
    },
}  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def root(request, tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=DATA.shape, dtype=DATA.dtype, **LAYOUTS[request.param])
    array[...] = DATA
    return tmp_path / "a"


def read(root):
    meta = read_meta(str(root))
    assert meta.codec.kind == "zarr"
    request = BoxRequest(
        arrays=(meta,), which=np.zeros(2, np.int64), starts=np.array([[0, 0], [4, 0]]), shape=(4, 30), dtype=meta.dtype
    )
    out = np.zeros((2, 4, 30), meta.dtype)
    with BoxReader(threads=1, cache=0) as reader:
        (report,) = reader.read([(reader.plan(request), out)])
    return out, report


def shortened(frames):
    """Bytes in which the first frame of Blosc says that it is longer than it is."""
    at = next(
        at
        for at in range(len(frames) - 16)
        if frames[at] == 2 and int.from_bytes(frames[at + 4 : at + 8], "little") == 240
    )
    says = int.from_bytes(frames[at + 12 : at + 16], "little") + 64
    return frames[: at + 12] + says.to_bytes(4, "little") + frames[at + 16 :]


def test_whole_frames_are_read(root):
    """Nothing changes for data that are well."""
    out, report = read(root)
    assert report.valid.all(), report.errors
    assert report.slow_chunks == 2
    np.testing.assert_array_equal(out.reshape(DATA.shape), DATA)


def test_a_frame_that_promises_more_than_there_is(root):
    """zarr-python's own Blosc would read on into foreign memory and return what lies there."""
    first = min(path for path in root.rglob("*") if path.is_file() and path.suffix != ".json" and path.name[0] != ".")
    first.write_bytes(shortened(first.read_bytes()))
    _, report = read(root)
    assert not report.valid[0]
    assert report.errors[0].damage
    assert "a Blosc frame has" in str(report.errors[0].error)


def test_a_shard_that_ends_before_a_chunk(tmp_path):
    """An index that only zarr-python knows points past the end: it would take the chunk for one never written."""
    index = [BytesCodec(endian="big")]
    codec = ShardingCodec(chunk_shape=(4, 30), codecs=[BytesCodec()], index_codecs=index, index_location="start")
    array = zarr.create_array(
        tmp_path / "a", shape=DATA.shape, dtype=DATA.dtype, chunks=(8, 30), serializer=codec, compressors=None
    )
    array[...] = DATA
    shard = tmp_path / "a" / "c" / "0" / "0"
    shard.write_bytes((10_000).to_bytes(8, "big") + shard.read_bytes()[8:])
    out, report = read(tmp_path / "a")
    assert report.valid.tolist() == [False, True]
    assert report.errors[0].damage
    assert "needs bytes 10000 to 10239 of c/0/0, which is shorter" in str(report.errors[0].error)
    np.testing.assert_array_equal(out[1], DATA[4:])


def test_other_documents_pass_unchanged(root):
    """Attributes that look like codecs stay what they are."""
    array = zarr.open_array(root, mode="a")
    array.attrs["compressor"] = {"id": "blosc", "name": "blosc"}
    opened = zarr.open_array(CheckedStore(LocalStore(Path(root), read_only=True)), mode="r")
    assert dict(opened.attrs) == dict(array.attrs)
    np.testing.assert_array_equal(opened[...], DATA)
