"""Sizes of stored chunks from a few files, without reading data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankwise.data.crops.audit.stores import StoredSizes, num_files, sample_sizes
from rankwise.data.store import read_meta
from rankwise.errors import DataError


def files(path):
    return sorted(file for file in Path(path, "c").rglob("*") if file.is_file())


def test_unsharded_files_are_chunks(write):
    """Looking at every file gives the exact mean, by the part of chunks that lies inside the array."""
    path = write(shards=None)
    meta = read_meta(path)
    sizes = sample_sizes(meta, most_files=10**6)
    assert sizes.files_sampled == num_files(meta) == len(files(path)) == 5 * 3 * 4
    assert sizes.file_bytes == np.mean([file.stat().st_size for file in files(path)])
    assert sizes.whole_chunks == pytest.approx(5 * 3 * 3.5)
    assert sizes.chunk_bytes * sizes.whole_chunks == pytest.approx(sum(f.stat().st_size for f in files(path)))
    assert sizes.missing_share == 0


def test_shards_are_known_by_their_index(write):
    """Chunks sum to the files less their indexes; what a shard has room for past the array is not missing."""
    path = write(shape=(16, 32, 48))
    meta = read_meta(path)
    sizes = sample_sizes(meta, most_files=10)
    total = sum(file.stat().st_size - meta.index.num_bytes for file in files(path))
    assert (sizes.files_found, sizes.chunks_sampled, sizes.missing_share) == (2, 12, 0)
    assert sizes.chunk_bytes * sizes.chunks_written == pytest.approx(total)


def test_few_files_are_enough(write):
    """Only as many files as asked for are looked at, spread over the array."""
    sizes = sample_sizes(read_meta(write(shards=None)), most_files=3)
    assert sizes.files_sampled == 3


def test_what_is_not_there(write):
    """Files that were never written are missing chunks."""
    path = write(shards=None)
    gone = files(path)[::2]
    for file in gone:
        file.unlink()
    sizes = sample_sizes(read_meta(path), most_files=10**6)
    assert sizes.missing_share == pytest.approx(len(gone) / 60)
    assert sizes.files_found == 60 - len(gone)


def test_nothing_written(write):
    """An array without a file has no sizes to speak of, and is not an error."""
    path = write(shards=None)
    for file in files(path):
        file.unlink()
    sizes = sample_sizes(read_meta(path), most_files=4)
    assert (sizes.chunk_bytes, sizes.missing_share, sizes.files_found) == (0, 1, 0)


def test_none_asked(write):
    """Metadata only: no file is touched."""
    path = write()
    for file in files(path):
        file.write_bytes(b"damaged")
    assert sample_sizes(read_meta(path), most_files=0) is None
    with pytest.raises(DataError, match="shard index"):
        sample_sizes(read_meta(path), most_files=4)


def test_together():
    """Several samples count by what they saw."""
    one = StoredSizes(
        files_sampled=2,
        files_found=1,
        chunks_sampled=10,
        chunks_written=5,
        whole_chunks=4.0,
        chunk_bytes=100,
        file_bytes=500,
    )
    other = replace(one, files_found=2, chunks_written=10, whole_chunks=10.0, chunk_bytes=40, file_bytes=200)
    both = StoredSizes.together([one, other])
    assert (both.files_sampled, both.files_found, both.chunks_sampled) == (4, 3, 20)
    assert both.missing_share == 0.25
    assert both.chunk_bytes == pytest.approx((4 * 100 + 10 * 40) / 14)
    assert both.file_bytes == pytest.approx(300)
