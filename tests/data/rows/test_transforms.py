"""Counts per million and their logarithm, on every kind of batch."""

import numpy as np
import pytest
import torch

from rankwise.data.feed.csr import csr_parts, scipy_csr, torch_csr
from rankwise.data.rows import log1p_cpm
from rankwise.testing.small_rows import random_csr


def made(kind, matrix):
    parts = matrix.data.copy(), matrix.indices.astype("i4"), matrix.indptr.astype("i4")
    if kind == "torch sparse":
        return torch_csr(tuple(map(torch.from_numpy, parts)), matrix.shape[1])
    if kind == "scipy":
        return scipy_csr(parts, matrix.shape[1])
    return torch.from_numpy(matrix.toarray()) if kind == "torch dense" else matrix.toarray()


def plain(field):
    if hasattr(field, "toarray"):
        return field.toarray()
    return field.to_dense().numpy() if hasattr(field, "layout") else field


@pytest.mark.parametrize("num_rows", [0, 25])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("kind", ["numpy", "scipy", "torch dense", "torch sparse"])
def test_it_is_what_it_says(kind, dtype, num_rows):
    """The formula, for floats and whole numbers; empty rows stay zero, other fields and the input stay as they are."""
    matrix = random_csr(25, 12, seed=4).astype(dtype)[:num_rows]
    dense = matrix.toarray().astype("f8")
    sums = dense.sum(axis=1, keepdims=True)
    wanted = np.log1p(dense * np.where(sums > 0, 1e6 / np.maximum(sums, 1), 0))
    given = {"X": made(kind, matrix), "n": 3}
    found = log1p_cpm(given, None)
    np.testing.assert_allclose(plain(found["X"]), wanted, rtol=1e-5)
    assert (found["n"], plain(found["X"]).dtype) == (3, np.dtype("f8" if dtype == "f8" else "f4"))
    np.testing.assert_array_equal(plain(given["X"]), matrix.toarray())


@pytest.mark.parametrize("kind", ["scipy", "torch dense", "torch sparse"])
def test_rows_do_not_depend_on_the_batch(kind):
    """Each row comes out bit for bit as in a batch of its own."""
    matrix = random_csr(9, 12, seed=4)
    whole = plain(log1p_cpm({"X": made(kind, matrix)}, None)["X"])
    for row in range(9):
        alone = plain(log1p_cpm({"X": made(kind, matrix[row])}, None)["X"])
        assert alone[0].tolist() == whole[row].tolist()


def test_sparse_batches_share_their_columns():
    """Only the values are new."""
    field = made("torch sparse", random_csr(9, 12, seed=4))
    found = log1p_cpm({"X": field}, None)["X"]
    assert csr_parts(found)[1].data_ptr() == csr_parts(field)[1].data_ptr()
