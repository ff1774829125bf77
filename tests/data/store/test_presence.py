"""What lies on disk, without decoding."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from rankwise.data.store import ByteRange, open_array
from rankwise.data.store.presence import advise
from rankwise.errors import SampleError


@pytest.mark.parametrize("options", [{"shards": (8, 4)}, {}, {"zarr_format": 2}])
def test_hints_name_the_bytes_of_the_chunk(tmp_path, monkeypatch, options):
    """A hint asks the system for exactly the encoded bytes of a chunk, and for nothing once it is cached."""
    asked = []

    def note(handle, offset, length, advice):
        asked.append((str(Path(f"/proc/self/fd/{handle}").readlink()), offset, length))
        assert advice == os.POSIX_FADV_WILLNEED

    monkeypatch.setattr(os, "posix_fadvise", note)
    zarr.create_array(tmp_path / "a", data=np.arange(64).reshape(16, 4) + 1, chunks=(2, 2), **options)
    stored = open_array(tmp_path / "a")
    stored.hint(3)
    found = stored.find(3)
    assert sorted(asked) == sorted((str(piece.path), piece.offset, piece.length) for piece in found.ranges)
    assert len(asked) == 2
    _, stats = stored.read_chunk(3)
    assert stats.read_bytes == found.num_bytes == sum(length for _, _, length in asked)
    asked.clear()
    stored.hint(3)
    assert asked == []


def test_hints_never_fail(tmp_path):
    """Files that are gone are left for reading to complain about."""
    advise((ByteRange(path=tmp_path / "none", offset=0, length=5),))


def test_sample_errors_travel():
    """A SampleError keeps its attributes through pickle, as it must from a worker or another rank."""
    arrived = pickle.loads(pickle.dumps(SampleError("broken", sample=7, place="chunk 3")))
    assert (str(arrived), arrived.sample, arrived.place) == ("broken", 7, "chunk 3")
