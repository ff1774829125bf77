"""Shards that are written chunk by chunk."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

from rankwise.data.rows.output.sharded import create_array, write_whole
from rankwise.data.rows.output.shards import ShardStream

LZ4 = BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")


@pytest.mark.parametrize("keep_zeros", [False, True])
@pytest.mark.parametrize(
    ("codecs", "dtype", "inner"),
    [
        ((LZ4,), "f4", ()),
        ((BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle"),), "i4", (5,)),
        ((ZstdCodec(level=1),), "u2", ()),
        ((), "f8", (3, 2)),
        ((LZ4,), "?", ()),
    ],
)
def test_files_are_those_of_zarr(tmp_path, codecs, dtype, inner, keep_zeros):
    """Byte for byte, whatever the codecs: chunks that are empty, the index, a last shard that is not full."""
    rng = np.random.default_rng(0)
    values = (rng.poisson(1, (500, *inner)) * 3).astype(dtype)
    values[100:180] = 0
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w", zarr_format=3)
    facts = {"shape": values.shape, "dtype": values.dtype, "chunk": 10, "shard": 70, "compressors": codecs}
    theirs, ours = (create_array(group, name, **facts) for name in ("theirs", "ours"))
    write_whole(theirs, values, keep_zeros=keep_zeros)
    digests = {}
    for start, stop in ((0, 140), (350, 500), (140, 350)):
        batch_bytes = int(rng.integers(1, 3_000))
        part = ShardStream(ours, start, stop, tmp_path / "scratch", batch_bytes=batch_bytes, keep_zeros=keep_zeros)
        for first in range(start, stop, 33):
            part.append(values[first : min(first + 33, stop)])
        digests |= part.close()
    files = [
        {path.relative_to(tmp_path / "g.zarr" / name).as_posix(): path.read_bytes() for path in found}
        for name in ("theirs", "ours")
        for found in [[p for p in (tmp_path / "g.zarr" / name).rglob("*") if p.is_file()]]
    ]
    assert files[0] == files[1]
    assert set(digests) == set(files[0]) - {"zarr.json"}


def test_rows_that_are_missing_are_missed(tmp_path):
    """A part that did not get all of its rows is no part."""
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w", zarr_format=3)
    array = create_array(group, "a", shape=(100,), dtype=np.dtype("f4"), chunk=10, shard=20, compressors=(LZ4,))
    part = ShardStream(array, 20, 60, tmp_path / "scratch")
    part.append(np.ones(25, "f4"))
    with pytest.raises(RuntimeError, match="should get rows up to 60, but got 45"):
        part.close()


def test_an_error_lets_go_of_file_and_threads(tmp_path):
    """Whoever writes a part and fails keeps nothing open, and the array has no file of it."""
    group = zarr.open_group(str(tmp_path / "g.zarr"), mode="w", zarr_format=3)
    array = create_array(group, "a", shape=(100,), dtype=np.dtype("f4"), chunk=10, shard=20, compressors=(LZ4,))
    part = ShardStream(array, 20, 60, tmp_path / "scratch", batch_bytes=1)
    with pytest.raises(ValueError, match="could not convert"), part:
        part.append(np.concatenate([np.ones(15), ["none"]]))
    assert part._file._file.closed
    with pytest.raises(RuntimeError, match="after shutdown"):
        part._encoder.encode(np.ones(10, "f4"))
    assert [path.name for path in (tmp_path / "g.zarr" / "a").iterdir()] == ["zarr.json"]
