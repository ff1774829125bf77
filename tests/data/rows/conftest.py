"""Small AnnData stores."""

import numpy as np
import pytest
import scipy.sparse as sp
import zarr


def random_csr(num_rows, num_cols, *, seed=0, dtype="f4", density=0.2):
    """A matrix with some empty rows, values that say where they stand, and sorted columns."""
    rng = np.random.default_rng(seed)
    held = rng.random((num_rows, num_cols)) < density
    held[rng.random(num_rows) < 0.1] = False
    values = np.arange(1, num_rows * num_cols + 1).reshape(num_rows, num_cols) % 250 + 1
    return sp.csr_matrix(np.where(held, values, 0).astype(dtype))


def write_csr(group, name, matrix, *, chunk=50, shard=200, index_dtype="i4"):
    """Write a CSR matrix as AnnData does, with the chunks that a test wants."""
    held = group.create_group(name)
    held.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    nnz = matrix.nnz
    for part, dtype in (("data", matrix.dtype), ("indices", index_dtype), ("indptr", "i8")):
        values = getattr(matrix, part).astype(dtype)
        sizes = {"chunks": (chunk,), "shards": (shard,)} if part != "indptr" and nnz else {"chunks": (chunk,)}
        array = held.create_array(part, shape=values.shape, dtype=values.dtype, **sizes)
        array[:] = values
    return held


@pytest.fixture
def csr_store(tmp_path):
    """Two CSR matrices, their group and what they hold together."""
    group = zarr.open_group(str(tmp_path / "cells.zarr"), mode="w")
    parts = [random_csr(83, 17, seed=1), random_csr(60, 17, seed=2)]
    for number, part in enumerate(parts):
        write_csr(group, f"m{number}", part)
    return str(tmp_path / "cells.zarr"), sp.vstack(parts).tocsr()
