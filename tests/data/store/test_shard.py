"""Shard indexes, against what zarr-python wrote."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec

from rankwise.data.store import read_meta
from rankwise.data.store.shard import MISSING, OUTSIDE, IndexLayout, read_index
from rankwise.errors import DataError


def sharded(path, **options):
    array = zarr.create_array(path, shape=(8, 6), chunks=(2, 3), shards=(8, 6), dtype="u1", compressors=None, **options)
    array[:4] = 7
    return read_meta(path).index, path / "c" / "0" / "0"


def test_written_chunks_have_their_bytes_and_others_none(tmp_path):
    """The index says where each inner chunk lies; the bytes there are the chunk."""
    layout, file = sharded(tmp_path)
    index = read_index(file, layout)
    assert index.shape == (4, 2, 2)
    assert (index[:2, :, 1] == 6).all()
    assert (index[2:, :, 0] == MISSING).all()
    encoded = file.read_bytes()
    for offset, length in index[:2].reshape(-1, 2):
        assert encoded[offset : offset + length] == b"\x07" * 6


def test_no_file_means_nothing_was_written(tmp_path):
    """An absent shard is an index of missing chunks."""
    layout, _ = sharded(tmp_path)
    assert (read_index(tmp_path / "none", layout)[..., 0] == MISSING).all()


def test_absurd_offsets_are_outside(tmp_path):
    """Offsets and lengths beyond the file, even such that their sum wraps around, are never followed."""
    layout = IndexLayout(chunks_per_shard=(3,), at_end=True, checked=False)
    entries = np.array([[2**64 - 2, 8], [0, 2**63], [4, 60]], dtype="<u8")
    (tmp_path / "f").write_bytes(b"x" * 8 + entries.tobytes())
    assert read_index(tmp_path / "f", layout)[:, 0].tolist() == [OUTSIDE, OUTSIDE, OUTSIDE]


def test_a_chunk_of_no_bytes_is_outside(tmp_path):
    """No codec makes a chunk of none; zarr-python may take it for one that was never written."""
    entries = np.array([[0, 8], [4, 0]], dtype="<u8")
    (tmp_path / "f").write_bytes(b"x" * 8 + entries.tobytes())
    index = read_index(tmp_path / "f", IndexLayout(chunks_per_shard=(2,), at_end=True, checked=False))
    assert index.tolist() == [[0, 8], [OUTSIDE, 0]]


def test_a_file_shorter_than_its_index_is_named(tmp_path):
    """The error names the file and both sizes."""
    (tmp_path / "f").write_bytes(b"short")
    with pytest.raises(DataError, match="has 5 bytes, but its shard index alone needs 36") as caught:
        read_index(tmp_path / "f", IndexLayout(chunks_per_shard=(2,), at_end=True, checked=True))
    assert str(tmp_path / "f") in str(caught.value)


def test_unknown_ways_to_keep_an_index_are_left_to_zarr(tmp_path):
    """Unsharded arrays, and other index codecs, have no layout that we read."""
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
    assert read_meta(tmp_path / "a").index is None
    codec = ShardingCodec(chunk_shape=(2, 2), index_codecs=[TransposeCodec(order=(2, 1, 0)), BytesCodec()])
    zarr.create_array(tmp_path / "b", shape=(4, 4), chunks=(4, 4), dtype="u1", serializer=codec, compressors=None)
    assert read_meta(tmp_path / "b").index is None
