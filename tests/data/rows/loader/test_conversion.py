"""From NumPy and scipy to other libraries."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from rankwise.data.rows.loader.defaults import check_library, convert
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import random_csr


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i8"])
def test_torch_shares_the_memory(dtype):
    """Values, shape and dtype are kept; nothing is copied; rows without elements are fine."""
    rows = random_csr(9, 5, seed=1, dtype=dtype)
    tensor = convert(rows, "torch")
    np.testing.assert_array_equal(tensor.to_dense().numpy(), rows.toarray())
    assert tensor.layout == torch.sparse_csr
    assert tensor.values().data_ptr() == rows.data.__array_interface__["data"][0]
    empty = convert(sp.csr_matrix((3, 5), dtype=dtype), "torch")
    assert empty.to_dense().shape == (3, 5)
    assert empty.to_dense().sum() == 0
    dense = rows.toarray()
    assert convert(dense, "torch").data_ptr() == dense.__array_interface__["data"][0]


def test_dtypes_that_only_one_of_both_has():
    """bfloat16, which NumPy has by ml_dtypes, is torch's own; what torch cannot hold is an error that names it."""
    half = np.arange(6).reshape(2, 3).astype(pytest.importorskip("ml_dtypes").bfloat16)
    tensor = convert(half, "torch")
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ConfigError, match="'X' has dtype complex256, which torch cannot hold"):
        convert(np.zeros((2, 2), np.clongdouble), "torch")


def test_jax():
    """CSR matrices and arrays of JAX, with the same values."""
    pytest.importorskip("jax")
    rows = random_csr(9, 5, seed=1)
    np.testing.assert_array_equal(np.asarray(convert(rows, "jax").todense()), rows.toarray())
    np.testing.assert_array_equal(np.asarray(convert(rows.toarray(), "jax")), rows.toarray())
    with pytest.raises(ValueError, match="'X' holds int64 beyond the range of int32"):
        convert(np.full((2, 2), 2**40), "jax")


def test_nothing_chosen_nothing_done():
    """None hands rows on as they are."""
    rows = random_csr(3, 3)
    assert convert(rows, None) is rows
    check_library(None)
