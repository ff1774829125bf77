"""Arrays that somebody writes to while a reader has them open: an error or the new values, never the old ones."""

import os
import time

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.errors import DataError

ROWS = 12


class Clock:
    """Seconds pass at each look at it, until they are stopped."""

    def __init__(self):
        self.now_s, self.tick_s = time.monotonic(), 1.0

    def __call__(self):
        self.now_s += self.tick_s
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Files of one chunk are looked at every half second; these tests do not wait."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture(params=["kept", "not kept"])
def reader(request):
    """With decoded chunks kept in memory, and without."""
    with BoxReader(threads=1, cache=2**20 if request.param == "kept" else 0, keep="all") as reader:
        yield reader


def make(path, *, fill=0, overwrite=False, rows=ROWS):
    array = zarr.create_array(path, shape=(rows, 4), chunks=(2, 4), dtype="i4", fill_value=fill, overwrite=overwrite)
    array[...] = np.arange(rows * 4).reshape(rows, 4) + 1
    return array


def read(reader, meta):
    """All rows, one box each, and the report."""
    starts = np.array([[row, 0] for row in range(ROWS)])
    request = BoxRequest(
        arrays=(meta,), which=np.zeros(ROWS, np.int64), starts=starts, shape=(1, 4), dtype=np.dtype("i4")
    )
    out = np.full((ROWS, 1, 4), -1, "i4")
    (report,) = reader.read([(reader.plan(request), out)])
    return out[:, 0], report


def told(report):
    return [str(error.error) for error in report.errors]


def test_rewritten_chunks_are_told(tmp_path, reader):
    """New values in chunk files of the same size, by rename and in place: their rows fail, the others are right."""
    array, meta = make(tmp_path / "a"), read_meta(tmp_path / "a")
    before, report = read(reader, meta)
    assert report.valid.all()
    array[2:4] = -7  # zarr-python writes a new file and renames it
    path = tmp_path / "a" / "c" / "3" / "0"
    path.write_bytes(path.read_bytes())
    after, report = read(reader, meta)
    assert np.flatnonzero(~report.valid).tolist() == [2, 3, 6, 7]
    assert all("was replaced or changed" in text for text in told(report))
    assert not any("copy or write the store again" in text for text in told(report))  # it is not damaged
    np.testing.assert_array_equal(after[report.valid], before[report.valid])


def test_chunks_that_come_or_go_are_told(tmp_path, reader):
    """A chunk that was not there at the first look and is now, and one that has gone."""
    array = make(tmp_path / "a", fill=5)
    (tmp_path / "a" / "c" / "1" / "0").unlink()
    meta = read_meta(tmp_path / "a")
    before, report = read(reader, meta)
    assert report.valid.all()
    assert (before[2:4] == 5).all()
    array[2:4] = 77
    (tmp_path / "a" / "c" / "4" / "0").unlink()
    _, report = read(reader, meta)
    assert np.flatnonzero(~report.valid).tolist() == [2, 3, 8, 9]


def test_an_array_that_is_made_anew_is_told(tmp_path, reader):
    """Another shape under the same name: no row of the old shape is handed out, and the message names both."""
    make(tmp_path / "a")
    meta = read_meta(tmp_path / "a")
    assert read(reader, meta)[1].valid.all()
    make(tmp_path / "a", overwrite=True, rows=ROWS + 6)
    _, report = read(reader, meta)
    assert not report.valid.any()


def test_an_array_that_grows_is_told(tmp_path, reader):
    """Its chunks are what they were, its shape is not."""
    array, meta = make(tmp_path / "a"), read_meta(tmp_path / "a")
    assert read(reader, meta)[1].valid.all()
    array.resize((ROWS + 2, 4))
    _, report = read(reader, meta)
    assert not report.valid.any()
    assert "(shape (12, 4) then, (14, 4) now): reopen it" in told(report)[0]
    assert not report.errors[0].damage  # nothing may skip a whole array


def test_an_array_of_the_same_shape_that_is_made_anew_is_told(tmp_path, reader):
    """What differs is said: two equal shapes explain nothing."""
    zarr.create_array(tmp_path / "a", shape=(ROWS, 4), chunks=(2, 4), dtype="i4")
    meta = read_meta(tmp_path / "a")
    assert read(reader, meta)[1].valid.all()
    zarr.create_array(tmp_path / "a", shape=(ROWS, 4), chunks=(2, 4), dtype="i4", zarr_format=2, overwrite=True)
    _, report = read(reader, meta)
    assert not report.valid.any()
    assert "(with other chunks, codecs or dtype): reopen it" in told(report)[0]


def test_attributes_may_change(tmp_path, reader):
    """Notes on an array are no part of its content."""
    array, meta = make(tmp_path / "a"), read_meta(tmp_path / "a")
    before, _ = read(reader, meta)
    array.attrs["note"] = "seen"
    after, report = read(reader, meta)
    assert report.valid.all()
    np.testing.assert_array_equal(after, before)


def test_a_loader_says_so(tmp_path):
    """The next epoch of a loader over an array that was rewritten meanwhile raises, and names the array."""
    array = make(tmp_path / "a")
    with ArraySource({"a": str(tmp_path / "a")}) as source:
        loader = SampleLoader(source, order=Order(source, batch_size=4), device=None, across_epochs=False)
        for (batch,) in loader:
            loader.mark_done(batch.resume)
        array[...] = 0
        loader.set_epoch(1)
        with pytest.raises(DataError, match="was replaced or changed"):
            list(loader)


def test_files_are_not_looked_at_for_every_batch(tmp_path, reader, monkeypatch, clock):
    """Within half a second the system is asked about each chunk file once, and again afterwards."""
    asked, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, *rest, **named: asked.append(str(path)) or stat(path, *rest, **named))
    make(tmp_path / "a")
    meta, files = read_meta(tmp_path / "a"), {str(path) for path in (tmp_path / "a" / "c").glob("*/*")}
    assert len(files) == ROWS // 2
    clock.tick_s = 0
    looks = []
    for clock.now_s in (0.0, 0.1, 0.2, 0.4, 0.6, 0.7):
        asked.clear()
        assert read(reader, meta)[1].valid.all()
        looks.append(sorted(files.intersection(asked)))
    assert looks == [sorted(files), [], [], [], sorted(files), []]


def test_a_file_that_has_changed_stays_changed(tmp_path, reader, clock):
    """Once it was told it is told at every read, also within the half second in which others are not looked at."""
    array, meta = make(tmp_path / "a"), read_meta(tmp_path / "a")
    assert read(reader, meta)[1].valid.all()
    array[2:4] = -7
    assert np.flatnonzero(~read(reader, meta)[1].valid).tolist() == [2, 3]
    clock.tick_s = 0
    for _ in range(3):
        assert 2 in np.flatnonzero(~read(reader, meta)[1].valid)
