"""What the system is told about bytes that will be read soon."""

import os

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.execution.context import merge_ranges

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no hints")


@pytest.fixture
def hinted(monkeypatch):
    """The byte ranges that were hinted."""
    calls = []

    def note(_fd, offset, length, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append((offset, offset + length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    return calls


def plan_of(reader, folder, *, starts=((0, 0),), shape=(8, 8)):
    values = np.random.default_rng(0).integers(0, 255, (32, 32), dtype=np.uint8)
    zarr.create_array(str(folder), data=values, chunks=(8, 8), shards=(32, 32), compressors=None)
    request = BoxRequest(
        arrays=(read_meta(str(folder)),),
        which=np.zeros(len(starts), dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        shape=shape,
        dtype=np.dtype("u1"),
    )
    return reader.plan(request)


def would_wait(*_):
    raise BlockingIOError


def test_bytes_on_disk_are_hinted(tmp_path, hinted, monkeypatch):
    """What is not in memory is asked for, touching chunks in one call."""
    monkeypatch.setattr(os, "preadv", would_wait)
    with BoxReader() as reader:
        plan = plan_of(reader, tmp_path / "a.zarr", shape=(16, 32))
        reader.hint([plan])
    chunks = plan.chunks
    assert hinted == [(int(chunks.offset.min()), int((chunks.offset + chunks.length).max()))]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell what is in memory")
def test_bytes_in_memory_are_not_hinted(tmp_path, hinted, monkeypatch):
    """A hint for what lies in the page cache would cost and change nothing."""
    monkeypatch.setattr(os, "preadv", lambda _fd, buffers, _offset, flags: flags == os.RWF_NOWAIT and len(buffers[0]))
    with BoxReader() as reader:
        reader.hint([plan_of(reader, tmp_path / "a.zarr")])
    assert hinted == []


def test_only_one_end_in_memory(tmp_path, hinted, monkeypatch):
    """Where the last byte would have to be waited for, the range is hinted."""
    looks = iter([1, 0])
    monkeypatch.setattr(os, "preadv", lambda *_: next(looks))
    with BoxReader() as reader:
        reader.hint([plan_of(reader, tmp_path / "a.zarr")])
    assert len(hinted) == 1


def test_hints_say_nothing(tmp_path):
    """A file that went away is told when it is read, not when it is hinted."""
    with BoxReader() as reader:
        plan = plan_of(reader, tmp_path / "a.zarr")
        (tmp_path / "a.zarr" / "c" / "0" / "0").unlink()
        reader.hint([plan])
        report = reader.read([(plan, np.empty((1, 8, 8), dtype="u1"))])[0]
    assert not report.valid.any()


def test_ranges_are_joined():
    """Neighbours of one file join, up to gaps of four pages; files never do."""
    file, offset, length = np.array([0, 0, 0, 1]), np.array([0, 100, 90_000, 0]), np.array([100, 50, 10, 7])
    assert [part.tolist() for part in merge_ranges(file, offset, length)] == [[0, 0, 1], [0, 90_000, 0], [150, 10, 7]]
