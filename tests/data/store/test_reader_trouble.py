"""Trouble with the storage: what passes is tried again and counted; what stays is told, and is no damage."""

import errno
import functools
import os
import threading

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.decode.decoder import ThreadsDecoder
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.data.store.decode.tasks import OS_ERROR
from rankwise.data.store.execution.slow import SlowArrays
from rankwise.data.store.files import facts, handles

DATA = np.arange(8 * 64, dtype="u2").reshape(8, 64)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """As many tries as ever, without waiting between them."""
    monkeypatch.setattr(facts, "PAUSES_S", (0.0,) * len(facts.PAUSES_S))


def array(root, codec=None, *, shards=None):
    made = zarr.create_array(
        root, shape=DATA.shape, chunks=(2, 64), shards=shards, dtype="u2", compressors=codec or ZstdCodec()
    )
    made[...] = DATA
    return read_meta(str(root))


def read(reader, meta):
    """All rows, two to a box, each box one chunk."""
    starts = np.array([[row, 0] for row in range(0, 8, 2)], np.int64)
    request = BoxRequest(
        arrays=(meta,), which=np.zeros(4, np.int64), starts=starts, shape=(2, 64), dtype=np.dtype("u2")
    )
    out = np.zeros((4, 2, 64), "u2")
    (report,) = reader.read([(reader.plan(request), out)])
    for box in np.flatnonzero(report.valid).tolist():
        np.testing.assert_array_equal(out[box], DATA[2 * box : 2 * box + 2])
    return report


class Trouble:
    """Raises an OSError at the first calls of a function, then calls it."""

    def __init__(self, call, number, times):
        self.call, self.number, self.times = call, number, times
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, *arguments, **named):
        with self.lock:
            self.calls += 1
            fails = self.calls <= self.times
        if fails:
            raise OSError(self.number, os.strerror(self.number))
        return self.call(*arguments, **named)


@pytest.fixture
def pread(monkeypatch):
    """Make `os.pread` fail, which the decoder in Python reads with."""
    monkeypatch.setenv("RANKWISE_DECODER", "threads")

    def spoil(number, times):
        trouble = Trouble(os.pread, number, times)
        monkeypatch.setattr(os, "pread", trouble)
        return trouble

    return spoil


@pytest.mark.parametrize("shards", [None, (4, 64)])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_read_that_fails_once_or_twice(tmp_path, pread, number, shards):
    """Everything arrives; the tries are counted."""
    meta = array(tmp_path / "a", shards=shards)
    with BoxReader(threads=1, cache=0) as reader:
        pread(number, 2)
        assert read(reader, meta).valid.all()
        assert 1 <= reader.stats.retries <= 2
        assert reader.stats.failed_boxes == 0


def test_a_read_that_keeps_failing(tmp_path, pread):
    """After four tries the boxes are told, as trouble and not as damage; other chunks do not wait as long again."""
    meta = array(tmp_path / "a")
    with BoxReader(threads=1, cache=0) as reader:
        trouble = pread(errno.EIO, 10**6)
        report = read(reader, meta)
    assert not report.valid.any()
    assert not any(error.damage for error in report.errors)
    assert "Input/output error" in str(report.errors[0].error)
    assert "copy or write" not in str(report.errors[0].error)
    assert isinstance(report.errors[0].error.__cause__, OSError)
    assert trouble.calls <= 4 * 4
    assert reader.stats.retries == trouble.calls - 4


def test_what_does_not_pass_is_told_at_once(tmp_path, pread):
    """A refusal is no passing trouble: one try for each chunk, no pauses."""
    meta = array(tmp_path / "a")
    with BoxReader(threads=1, cache=0) as reader:
        trouble = pread(errno.EACCES, 10**6)
        report = read(reader, meta)
    assert trouble.calls == 4
    assert reader.stats.retries == 0
    assert not any(error.damage for error in report.errors)


@pytest.mark.parametrize("decoder", [KernelDecoder, ThreadsDecoder])
def test_both_decoders_are_asked_again(tmp_path, monkeypatch, decoder):
    """A status that a decoder leaves is enough: the chunk is decoded again, the others are not."""
    monkeypatch.setenv("RANKWISE_DECODER", "kernel" if decoder is KernelDecoder else "threads")
    meta, run, seen = array(tmp_path / "a"), decoder.run, []

    def failing(self, tasks, first, last, *rest):
        run(self, tasks, first, last, *rest)
        seen.append((first, last))
        if len(seen) == 1:
            tasks.status[first], tasks.detail[first] = OS_ERROR, errno.EIO

    with BoxReader(threads=1, cache=0) as reader:
        assert reader.decoder == ("kernel" if decoder is KernelDecoder else "threads")
        monkeypatch.setattr(decoder, "run", failing)
        assert read(reader, meta).valid.all()
        assert reader.stats.retries == 1
        assert reader.stats.fast_chunks == 4
    assert seen == [(0, 4), (0, 1)]


def test_a_file_that_cannot_be_opened_now(tmp_path, monkeypatch):
    """Too many open files, somewhere else: tried again, at once with fewer files of ours, then as any read."""
    meta = array(tmp_path / "a")
    with BoxReader(threads=1, cache=0) as reader:
        assert reader.decoder  # loading it opens files
        monkeypatch.setattr(handles.os, "open", Trouble(os.open, errno.EMFILE, 3))
        assert read(reader, meta).valid.all()
        assert reader.stats.retries == 1


@pytest.mark.parametrize(("times", "valid"), [(2, True), (10**6, False)])
def test_an_index_that_cannot_be_read_now(tmp_path, monkeypatch, times, valid):
    """Shard indexes are looked at again too; where that does not help, their boxes are told, not as damage."""
    meta = array(tmp_path / "a", shards=(4, 64))
    monkeypatch.setattr(facts, "read_index", Trouble(facts.read_index, errno.EIO, times))
    with BoxReader(threads=1, cache=0) as reader:
        report = read(reader, meta)
        assert report.valid.tolist() == [valid] * 4
        assert not any(error.damage for error in report.errors)
        assert reader.stats.retries == (2 if valid else 6)


@pytest.mark.parametrize(("times", "valid"), [(2, True), (10**6, False)])
def test_what_zarr_python_cannot_read_now(tmp_path, monkeypatch, times, valid):
    """The slow path tries as often."""
    meta = array(tmp_path / "a", GzipCodec())
    trouble = Trouble(SlowArrays.chunk, errno.EIO, times)
    monkeypatch.setattr(SlowArrays, "chunk", functools.partialmethod(trouble))
    with BoxReader(threads=1, cache=0) as reader:
        report = read(reader, meta)
        assert report.valid.tolist() == [valid] * 4
        assert not any(error.damage for error in report.errors)
        assert trouble.calls == (6 if valid else 4 + 3)
        assert reader.stats.retries == (2 if valid else 3)
