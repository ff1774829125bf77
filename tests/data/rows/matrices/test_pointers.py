"""Row pointers in pages."""

import numpy as np
import pytest
import zarr

from rankwise.data.rows.matrices import RowPointers, paging
from rankwise.data.store import BoxReader, read_meta
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
    begin, lengths = held.spans(rows)
    np.testing.assert_array_equal(begin, values[rows])
    np.testing.assert_array_equal(lengths, np.diff(values.astype("i8"))[rows])
    assert held.num_pages_read == 4


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0, 3, 2, 5], "row 1 would begin after it ends"),
        ([1, 3, 4, 5], "row 0 would begin at element 1"),
        ([0, 3, 9, 9, 5], "row 3 would begin after it ends"),
        ([0, 3, 4, 4], "row 2 would end at element 4 of 5"),
        ([*([0] * 14), 4, 3, 5], "row 14 would begin after it ends"),
        ([*([5] * 14), 5, 5, 5], "row 0 would begin at element 5"),
        ([*([0] * 13), 4, 3, 4, 5], "row 13 would begin after it ends"),
    ],
)
def test_damage_is_told(tmp_path, reader, small_pages, values, said):
    """Pointers that fall, or do not begin and end with the elements, are refused before anything is read by them."""
    zarr.create_array(str(tmp_path / "indptr"), data=np.array(values), chunks=(7,))
    held = RowPointers(read_meta(tmp_path / "indptr"), 5, reader)
    with pytest.raises(DataError, match=said):
        held.spans(np.arange(len(values) - 1))


def test_other_arrays_are_refused(tmp_path, reader):
    """Fractions are no row pointers."""
    zarr.create_array(str(tmp_path / "indptr"), data=np.zeros(4))
    with pytest.raises(DataError, match=r"whole numbers along one axis; it is float64\[4\]"):
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
    begin, found = with_lengths(tmp_path, values, lengths, reader).spans(rows)
    np.testing.assert_array_equal(begin, values[rows])
    np.testing.assert_array_equal(found, lengths[rows])


def test_damaged_lengths_are_told(tmp_path, reader):
    """A row cannot be longer than its pointers allow."""
    held = with_lengths(tmp_path, [0, 3, 5], [3, 4], reader)
    with pytest.raises(DataError, match="row 1 would have 4 elements of 2"):
        held.spans(np.array([0, 1]))


def test_lengths_of_other_rows_are_refused(tmp_path, reader):
    """There is one length for each row."""
    with pytest.raises(DataError, match="lengths of 2 rows"):
        with_lengths(tmp_path, [0, 3, 5], [3], reader)
