"""The memory that writing a collection takes."""

import tracemalloc

import anndata
import numpy as np
import scipy.sparse as sp

from rankwise.data.rows import DatasetCollection


def cells(num_rows, per_row=150, num_cols=450):
    rng = np.random.default_rng(0)
    step = num_cols // per_row
    columns = rng.integers(0, step, (num_rows, per_row)) + np.arange(per_row) * step
    matrix = sp.csr_matrix(
        (rng.random(columns.size, dtype="f4"), columns.ravel().astype("i4"), np.arange(num_rows + 1) * per_row),
        shape=(num_rows, num_cols),
    )
    return anndata.AnnData(X=matrix)


def test_matrices_stay_below_the_budget(tmp_path):
    """With a budget of 2 MB, 6 MB of matrix are written with at most 2 MB in memory, the tables of rows included."""
    DatasetCollection(tmp_path / "warm.zarr").add_adatas([cells(50)])  # everything is imported, the codecs are ready
    made = cells(5_000)
    assert made.X.data.nbytes + made.X.indices.nbytes >= 5 * 2**20
    collection = DatasetCollection(tmp_path / "c.zarr")
    tracemalloc.start()
    try:
        collection.add_adatas([made], rng=0, memory_budget="2MB")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20
