"""Row pointers in pages."""

import re
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.matrices import pointers as paging
from rankwise.data.rows.matrices.pointers import RowPointers
from rankwise.data.store import BoxError, BoxReader, read_meta
from rankwise.errors import DataError


@pytest.fixture
def reader():
    with BoxReader(threads=1, cache=0) as reader:
        yield reader


def make(tmp_path, values, reader, **options):
    zarr.create_array(str(tmp_path / "indptr"), data=np.asarray(values), chunks=(7,))
    return RowPointers(read_meta(tmp_path / "indptr"), int(values[-1]), reader, **options)


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(paging, "_LEAST_PAGE", 10)  # of chunks of 7: pages of 14


@pytest.mark.parametrize("dtype", ["i4", "i8", "u4", "u8"])
def test_spans_are_those_of_the_array(tmp_path, reader, small_pages, dtype):
    """Rows on both sides of every edge of a page."""
    values = np.cumsum(np.random.default_rng(0).integers(0, 5, 54)).astype(dtype)
    values[0] = 0
    held = make(tmp_path, values, reader)
    rows = np.random.default_rng(1).permutation(53)
    begin, lengths, lost = held.spans(rows)
    assert not lost
    np.testing.assert_array_equal(begin, values[rows])
    np.testing.assert_array_equal(lengths, np.diff(values.astype("i8"))[rows])
    assert held._begins.num_pages_read == 4


def lost_rows(held, num_rows):
    """Rows of which it is not known where they lie, with why; they have no elements, in whatever order one asks."""
    rows = np.random.default_rng(2).permutation(num_rows)
    _, lengths, lost = held.spans(rows)
    found = {int(rows[error.box]): str(error.error) for error in lost}
    assert not lengths[[error.box for error in lost]].any()
    assert all(error.damage and "indptr" in error.place + str(error.error) for error in lost)
    return found


@pytest.mark.parametrize(
    ("values", "said", "lost"),
    [
        ([0, 3, 2, 5], r"chunk \(0,\) row 1 would begin after it ends", range(3)),
        ([1, 3, 4, 5], "row 0 would begin at element 1", range(3)),
        ([0, 3, 9, 9, 5], "row 3 would begin after it ends", range(4)),
        ([0, 3, 4, 4], "row 2 would end at element 4 of 5", range(3)),
        ([*([0] * 14), 4, 3, 5], r"chunk \(2,\) row 14 would begin after it ends", range(13, 16)),
        ([*([5] * 14), 5, 5, 5], "row 0 would begin at element 5", range(7)),
        ([*([0] * 13), 4, 3, 4, 5], "row 13 would begin after it ends", range(6, 16)),
        ([*([0] * 6), 4, 3, *([5] * 12)], "row 6 would begin after it ends", range(14)),
    ],
)
@pytest.mark.usefixtures("small_pages")
def test_damage_is_told(tmp_path, reader, values, said, lost):
    """Of a chunk with pointers that fall, or do not begin and end with the elements, no row is believed; of others all.

    Where a row begins in one chunk and ends before that in the next, either may be to blame, and both are.
    """
    zarr.create_array(str(tmp_path / "indptr"), data=np.array(values), chunks=(7,))
    held = RowPointers(read_meta(tmp_path / "indptr"), 5, reader)
    for _ in range(2):
        found = lost_rows(held, len(values) - 1)
        assert sorted(found) == list(lost)
        assert all(re.search(said, text) for text in found.values())


CHUNK, NUM_COLS = 5, 4


@st.composite
def harmed_pointers(draw):
    """Pointers, and what befalls which of their chunks."""
    lengths = [0] * draw(st.integers(0, 25)) + draw(st.lists(st.integers(1, NUM_COLS), min_size=1, max_size=60))
    values = np.concatenate([[0], np.cumsum(lengths)])
    stored = [number for number in range(-(-len(values) // CHUNK)) if values[number * CHUNK :][:CHUNK].any()]
    harms = st.sampled_from(["unlink", "cut", "falls"])
    return values, draw(st.dictionaries(st.sampled_from(stored), harms, max_size=4))


def expected_damage(values, harmed):
    """Chunks of what was left that are not believed; None where zeros could be what was written, but are not."""
    chunks = [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]
    gone = {number for number, how in harmed.items() if how == "unlink"}
    blank = gone | {number for number, chunk in enumerate(chunks) if not chunk.any()}
    bad = set(harmed) - gone
    filled = min((n for n in range(len(chunks)) if n not in blank and harmed.get(n) != "cut"), default=-1)
    bad |= {number for number in blank if number > filled or chunks[filled][0] > NUM_COLS}
    return None if gone - bad else bad


@settings(max_examples=50, deadline=None)
@given(pointers=harmed_pointers(), slots=st.integers(1, 5))
def test_no_row_lies_elsewhere(tmp_path_factory, pointers, slots):
    """Whatever chunks are gone, cut, or not what was written: rows of others are right, and those of them are lost.

    Chunks of zeros are not stored, and are no damage: rows at the beginning may be empty. They are believed as long as
    the first row behind them can hold the elements up to there.
    """
    values, harmed = pointers
    folder = tmp_path_factory.mktemp("pointers")
    array, left = zarr.create_array(str(folder / "indptr"), data=values, chunks=(CHUNK,)), values.copy()
    for number, how in harmed.items():
        path = folder / "indptr" / "c" / str(number)
        if how == "falls":
            place = min(number * CHUNK + 1, len(values) - 1)
            array[place] = left[place] = values[-1] + 1
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:10])
        else:
            path.unlink()
    bad, num_rows = expected_damage(left, harmed), len(values) - 1
    if bad is None:
        return
    lost = {row for row in range(num_rows) if {row // CHUNK, (row + 1) // CHUNK} & bad}
    with BoxReader(threads=1, cache=0) as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_LEAST_PAGE", 10)
        meta, most = read_meta(folder / "indptr"), slots * 40
        held = RowPointers(meta, int(values[-1]), reader, num_cols=NUM_COLS, capacity_bytes=most)
        assert set(lost_rows(held, num_rows)) == lost
        rows = np.array(sorted({*range(num_rows)} - lost), dtype=np.int64)
        begin, lengths, _ = held.spans(rows)
        np.testing.assert_array_equal(begin, values[rows])
        np.testing.assert_array_equal(lengths, values[rows + 1] - values[rows])


def test_trouble_with_the_storage_is_raised(tmp_path, reader, monkeypatch):
    """It is no damage: nobody skips a row for it, and the next try may succeed."""
    values = np.arange(30)
    held, read = make(tmp_path, values, reader), BoxReader.read

    def fail(self, jobs):
        (report,) = read(self, jobs)
        error = BoxError(box=0, place="there", error=DataError("the network is away"), damage=False)
        return (replace(report, valid=report.valid & False, errors=(error,)),)

    monkeypatch.setattr(BoxReader, "read", fail)
    with pytest.raises(DataError, match="network is away"):
        held.spans(np.arange(29))
    monkeypatch.undo()
    assert not lost_rows(held, 29)


def test_other_arrays_are_refused(tmp_path, reader):
    """Fractions are no row pointers."""
    zarr.create_array(str(tmp_path / "indptr"), data=np.zeros(4))
    with pytest.raises(DataError, match=r"integers along one axis; it is float64\[4\]"):
        RowPointers(read_meta(tmp_path / "indptr"), 5, reader)


def with_lengths(tmp_path, values, lengths, reader):
    zarr.create_array(str(tmp_path / "row_nnz"), data=np.asarray(lengths, dtype="u1"), chunks=(7,))
    zarr.create_array(str(tmp_path / "indptr"), data=np.asarray(values), chunks=(7,))
    lengths = read_meta(tmp_path / "row_nnz")
    return RowPointers(read_meta(tmp_path / "indptr"), int(values[-1]), reader, lengths=lengths)


def test_zeros_that_fill_chunks_are_left_out(tmp_path, reader, small_pages):
    """Where lengths stand beside the pointers, a row is as long as they say, in every page."""
    values = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 9, 53))])
    lengths = np.diff(values) // 2
    rows = np.random.default_rng(1).permutation(53)
    begin, found, lost = with_lengths(tmp_path, values, lengths, reader).spans(rows)
    assert not lost
    np.testing.assert_array_equal(begin, values[rows])
    np.testing.assert_array_equal(found, lengths[rows])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: None, "row 8 would have 9 elements of 3"),
        (lambda path: path.write_bytes(path.read_bytes()[:5]), r"chunk \(1,\)"),
        (lambda path: path.unlink(), "row 7 and those after it would be empty"),
    ],
)
def test_damaged_lengths_are_told(tmp_path, reader, harm, said):
    """No row can be longer than its pointers allow; a chunk that cannot be read, or is gone, costs its rows only."""
    lengths = [2] * 21
    lengths[8] = 9 if "9" in said else 2
    held = with_lengths(tmp_path, np.arange(22) * 3, lengths, reader)
    harm(tmp_path / "row_nnz" / "c" / "1")
    rows = np.arange(21)
    _, found, lost = held.spans(rows)
    assert [error.box for error in lost] == list(range(7, 14))
    assert all(re.search(said, str(error.error)) for error in lost)
    np.testing.assert_array_equal(found, [*[2] * 7, *[0] * 7, *[2] * 7])


def test_rows_without_elements_may_have_room(tmp_path, reader):
    """An empty row at the end of a block carries the zeros that fill its chunk, and is no damage."""
    held = with_lengths(tmp_path, np.arange(15) * 3, [2, 0] * 7, reader)
    for _ in range(2):
        _, found, lost = held.spans(np.arange(14))
        assert found.tolist() == [2, 0] * 7
        assert not lost


def test_lengths_of_other_rows_are_refused(tmp_path, reader):
    """There is one length for each row."""
    with pytest.raises(DataError, match="lengths of 2 rows"):
        with_lengths(tmp_path, [0, 3, 5], [3], reader)
