"""CSR rows to dense rows, the plain way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.fields.row_field import spread_rows
from rankwise.testing.stores.small_rows import random_csr


def spread(matrix, *, places=None, index="i4", width=None):
    out = np.full((matrix.shape[0], width or matrix.shape[1]), 7, dtype=matrix.dtype)
    parts = matrix.data, matrix.indices.astype(index), matrix.indptr.astype(index)
    return out, spread_rows(*parts, num_cols=matrix.shape[1], places=places, out=out)


@pytest.mark.parametrize("index", ["u2", "i4", "i8"])
@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "f8", "c16", "?"])
def test_all_columns(dtype, index):
    """Every element size: dense rows are those of SciPy, whatever the memory held before."""
    matrix = random_csr(40, 13, seed=3).astype(dtype)
    out, outside = spread(matrix, index=index)
    np.testing.assert_array_equal(out, matrix.toarray())
    assert not outside.any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), genes=st.lists(st.integers(0, 8), min_size=1, max_size=9, unique=True))
def test_chosen_columns(seed, genes):
    """Chosen columns in any order."""
    matrix = random_csr(12, 9, seed=seed)
    places = np.full(9, len(genes), dtype=np.int32)
    places[genes] = np.arange(len(genes))
    out, _ = spread(matrix, places=places, width=len(genes))
    np.testing.assert_array_equal(out, matrix.toarray()[:, genes])


def test_columns_met_twice_are_added_up():
    """As SciPy does."""
    data, indices, indptr = np.array([1, 2, 4, 8], "f4"), np.array([1, 1, 0, 1], "i4"), np.array([0, 2, 4], "i4")
    out = np.empty((2, 3), "f4")
    outside = spread_rows(data, indices, indptr, num_cols=3, places=None, out=out)
    assert out.tolist() == [[0, 3, 0], [4, 8, 0]]
    assert not outside.any()


def test_columns_that_are_not_there_are_told():
    """Damage writes nowhere else: the row is told, the others are right; also where a column is met twice besides."""
    data, indices = np.array([1, 2, 4, 8], "f4"), np.array([0, 3, -1, 2], "i4")
    out = np.empty((3, 3), "f4")
    outside = spread_rows(data, indices, np.array([0, 2, 3, 4], "i4"), num_cols=3, places=None, out=out)
    assert outside.tolist() == [True, True, False]
    assert out[2].tolist() == [0, 0, 8]
    both = np.array([0, 0, 9, 2], "i4")
    outside = spread_rows(data, both, np.array([0, 4], "i4"), num_cols=3, places=None, out=out[:1])
    assert outside.tolist() == [True]
    assert out[0].tolist() == [3, 0, 8]


def test_no_rows_and_no_elements():
    """Empty shares, and rows without elements."""
    none, starts = np.zeros(0, "f4"), np.zeros(4, "i4")
    out = np.full((3, 2), 5, "f4")
    spread_rows(none, none.astype("i4"), starts, num_cols=2, places=None, out=out)
    assert not out.any()
    assert len(spread_rows(none, none.astype("i4"), starts[:1], num_cols=2, places=None, out=out[:0])) == 0
