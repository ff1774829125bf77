"""Rows of stacked matrices are the rows that were asked for."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.data.rows.matrices.matrix import open_matrix
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.errors import ConfigError, DataError


def read(stack, rows, reader):
    """Rows of a stack, as scipy or NumPy hold them."""
    plan = stack.plan(np.asarray(rows, dtype=np.int64), reader)
    if not stack.spec.ragged:
        out = np.empty((len(rows), *stack.spec.shape), dtype=stack.spec.dtype)
        reports = reader.read(plan.jobs([out]))
        assert all(report.valid.all() for report in reports)
        return out
    nnz = plan.num_elements
    arrays = np.empty(nnz, stack.spec.dtype), np.empty(nnz, stack.spec.index_dtype), np.empty(len(rows) + 1, np.int64)
    reports = reader.read(plan.jobs(arrays))
    assert all(report.valid.all() for report in reports)
    return sp.csr_matrix(arrays, shape=(len(rows), *stack.spec.shape))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_sparse_rows(csr_store, reader, data):
    """Any rows of two CSR matrices, in any order, also several times, also empty ones."""
    place, whole = csr_store
    stack = stack_matrices([open_matrix(f"{place}/m{k}", reader) for k in (0, 1)])
    assert (stack.num_rows, *stack.spec.shape) == whole.shape
    rows = data.draw(st.lists(st.integers(0, stack.num_rows - 1), max_size=40))
    found = read(stack, rows, reader)
    assert found.dtype == whole.dtype
    np.testing.assert_array_equal(found.toarray(), whole[rows].toarray())
    np.testing.assert_array_equal(found.indptr, whole[rows].indptr)


@pytest.mark.parametrize("shape", [(40, 7), (40, 3, 5), (40,), (40, 0)])
def test_dense_rows(tmp_path, reader, shape):
    """Rows of arrays of any number of axes."""
    values = np.arange(np.prod(shape), dtype="u2").reshape(shape)
    chunks = (6, *(max(1, size // 2) for size in shape[1:]))
    for k in (0, 1):
        zarr.create_array(str(tmp_path / f"{k}.zarr"), data=values + k, chunks=chunks)
    stack = stack_matrices([open_matrix(tmp_path / f"{k}.zarr", reader) for k in (0, 1)])
    rows = [79, 0, 41, 3, 3, 40, 39]
    np.testing.assert_array_equal(read(stack, rows, reader), np.concatenate([values, values + 1])[rows])


def test_a_stack_is_one_kind(csr_store, tmp_path, reader):
    """CSR and dense matrices, or rows of two lengths, cannot lie over each other; the message names all."""
    place, _ = csr_store
    zarr.create_array(str(tmp_path / "d.zarr"), data=np.zeros((4, 17)))
    zarr.create_array(str(tmp_path / "e.zarr"), data=np.zeros((4, 16)))
    sparse, dense, other = (
        open_matrix(uri, reader) for uri in (f"{place}/m0", tmp_path / "d.zarr", tmp_path / "e.zarr")
    )
    with pytest.raises(ConfigError, match=r"of one kind; .*m0 is CSR, .*d.zarr is dense"):
        stack_matrices([sparse, dense])
    with pytest.raises(ConfigError, match=r"one shape; .*d.zarr has \[17\], .*e.zarr has \[16\]"):
        stack_matrices([dense, other])
    with pytest.raises(ConfigError, match="at least one matrix"):
        stack_matrices([])


def test_dtypes_are_widened(tmp_path, reader):
    """What comes out holds what any of the matrices holds."""
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.full((3, 2), 200, dtype="u1"))
    zarr.create_array(str(tmp_path / "b.zarr"), data=np.full((3, 2), -5, dtype="i1"))
    stack = stack_matrices([open_matrix(tmp_path / f"{name}.zarr", reader) for name in "ab"])
    assert read(stack, [0, 5], reader).tolist() == [[200, 200], [-5, -5]]
    assert stack.spec.dtype == np.dtype("i2")


def test_rows_that_are_not_there(csr_store, reader):
    """A row past the end is refused."""
    stack = stack_matrices([open_matrix(f"{csr_store[0]}/m0", reader)])
    with pytest.raises(IndexError, match="rows 3 to 83 were requested, but there are 83"):
        stack.plan(np.array([3, 83]), reader)


def test_a_stack_travels(csr_store, reader):
    """A pickled stack reads the same."""
    place, whole = csr_store
    stack, other = pickle.loads(pickle.dumps((stack_matrices([open_matrix(f"{place}/m0", reader)]), reader)))
    np.testing.assert_array_equal(read(stack, [5, 1], other).toarray(), whole[[5, 1]].toarray())


def test_what_rows_cannot_be_read_from(csr_store, tmp_path, reader):
    """Columns first, other groups, missing parts and wrong shapes are told with the place."""
    place, _ = csr_store
    group = zarr.open_group(place, mode="a")
    group.create_group("other")
    group.create_group("csc").attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(DataError, match="csc is stored column by column"):
        open_matrix(f"{place}/csc", reader)
    with pytest.raises(DataError, match="other holds no matrix"):
        open_matrix(f"{place}/other", reader)
    with pytest.raises(DataError, match="there is no Zarr array or group at"):
        open_matrix(f"{place}/nothing", reader)
    group["m0"].attrs["shape"] = [82, 17]
    with pytest.raises(DataError, match=r"needs an attribute shape=\[83, columns\]"):
        open_matrix(f"{place}/m0", reader)
    del group["m1/indices"]
    with pytest.raises(DataError, match="m1 lacks its array 'indices'"):
        open_matrix(f"{place}/m1", reader)
