"""CSR rows to dense rows, compiled and by NumPy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.dense import OUTSIDE, spread_rows
from rankwise.data.rows.dense import spreading as module
from rankwise.data.rows.dense.compiled import compiled_spread
from rankwise.testing.small_rows import random_csr


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(module, "compiled_spread", lambda *_: None)
    return request.param


def test_the_loop_compiles():
    """Where numba is, the compiled loop is at work: the tests below would not notice."""
    assert compiled_spread(4, 4) is not None
    assert compiled_spread(16, 4) is None


def spread(matrix, *, places=None, index="i4", width=None):
    out = np.full((matrix.shape[0], width or matrix.shape[1]), 7, dtype=matrix.dtype)
    parts = matrix.data, matrix.indices.astype(index), matrix.indptr.astype(index)
    return out, spread_rows(*parts, num_cols=matrix.shape[1], places=places, out=out)


@pytest.mark.parametrize("index", ["i4", "i8"])
@pytest.mark.parametrize("dtype", ["i1", "u2", "f4", "f8", "c16", "?"])
def test_all_columns(way, dtype, index):
    """Every element size: dense rows are those of SciPy, whatever the memory held before."""
    matrix = random_csr(40, 13, seed=3).astype(dtype)
    out, states = spread(matrix, index=index)
    np.testing.assert_array_equal(out, matrix.toarray())
    assert not states.any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), genes=st.lists(st.integers(0, 8), min_size=1, max_size=9, unique=True))
def test_chosen_columns(seed, genes):
    """Chosen columns in any order, both ways alike."""
    matrix = random_csr(12, 9, seed=seed)
    places = np.full(9, -1, dtype=np.int32)
    places[genes] = np.arange(len(genes))
    out, _ = spread(matrix, places=places, width=len(genes))
    np.testing.assert_array_equal(out, matrix.toarray()[:, genes])
    again = np.empty_like(out)
    states = np.zeros(12, dtype=np.uint8)
    module._by_numpy((matrix.data, matrix.indices, matrix.indptr), 9, places, again, states)
    np.testing.assert_array_equal(again, out)


def test_columns_met_twice_are_added_up(way):
    """As SciPy does; only the rows that have such columns take the longer way."""
    data, indices, indptr = np.array([1, 2, 4, 8], "f4"), np.array([1, 1, 0, 1], "i4"), np.array([0, 2, 4], "i4")
    out = np.empty((2, 3), "f4")
    states = spread_rows(data, indices, indptr, num_cols=3, places=None, out=out)
    assert out.tolist() == [[0, 3, 0], [4, 8, 0]]
    assert not (states & OUTSIDE).any()


def test_columns_that_are_not_there_are_told(way):
    """Damage writes nowhere else: the row is told, the others are right; also where a column is met twice besides."""
    data, indices = np.array([1, 2, 4, 8], "f4"), np.array([0, 3, -1, 2], "i4")
    out = np.empty((3, 3), "f4")
    states = spread_rows(data, indices, np.array([0, 2, 3, 4], "i4"), num_cols=3, places=None, out=out)
    assert (states & OUTSIDE).tolist() == [1, 1, 0]
    assert out[2].tolist() == [0, 0, 8]
    both = np.array([0, 0, 9, 2], "i4")
    states = spread_rows(data, both, np.array([0, 4], "i4"), num_cols=3, places=None, out=out[:1])
    assert (states & OUTSIDE).tolist() == [1]
    assert out[0].tolist() == [3, 0, 8]


def test_no_rows_and_no_elements(way):
    """Empty shares, and rows without elements."""
    none, starts = np.zeros(0, "f4"), np.zeros(4, "i4")
    out = np.full((3, 2), 5, "f4")
    spread_rows(none, none.astype("i4"), starts, num_cols=2, places=None, out=out)
    assert not out.any()
    assert len(spread_rows(none, none.astype("i4"), starts[:1], num_cols=2, places=None, out=out[:0])) == 0


def test_threads_share_the_rows():
    """Large batches are cut into pieces for the crew, which together are the whole; small ones are not."""
    matrix = random_csr(3000, 400, seed=1, density=0.02)
    out, counts = np.full(matrix.shape, 3, dtype="f4"), []

    def crew(tasks):
        tasks = list(tasks)
        counts.append(len(tasks))
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda task: task(), tasks))

    parts = matrix.data, matrix.indices, matrix.indptr
    spread_rows(*parts, num_cols=400, places=None, out=out, crew=crew)
    np.testing.assert_array_equal(out, matrix.toarray())
    spread_rows(matrix.data, matrix.indices, matrix.indptr[:3], num_cols=400, places=None, out=out[:2], crew=crew)
    assert counts == [4]
