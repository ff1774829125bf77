"""The memory that writing a collection takes."""

import tracemalloc

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr

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
    """With a budget of 2 MB, 4 MB of matrix are written with at most 2 MB in memory, the tables of rows included."""
    DatasetCollection(tmp_path / "warm.zarr").add_adatas([cells(50)])  # everything is imported, the codecs are ready
    made = cells(3_500)
    assert made.X.data.nbytes + made.X.indices.nbytes >= 4 * 2**20
    collection = DatasetCollection(tmp_path / "c.zarr")
    tracemalloc.start()
    try:
        collection.add_adatas([made], rng=0, memory_budget="2MB")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


def peak_of(made, place, **options):
    """Most bytes that Python and NumPy held while a collection was written, of a store with chunks of 2,000."""
    with anndata.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        group = zarr.open_group(place.with_suffix(".source"), mode="w", zarr_format=3)
        anndata.io.write_elem(group, "/", made, dataset_kwargs={"chunks": (2_000,)})
    del made
    collection = DatasetCollection(place)
    tracemalloc.start()
    try:
        collection.add_adatas([place.with_suffix(".source")], rng=0, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_columns_of_observations_stay_below_the_budget(tmp_path):
    """A table of over 2 MiB in pandas is written in 2 MB: columns pass in blocks, as matrices do."""
    DatasetCollection(tmp_path / "warm.zarr").add_adatas([cells(50)])
    num_rows = 7_000
    columns = {f"text{k}": [f"{k}/{row}" for row in range(num_rows)] for k in range(4)}
    columns |= {f"number{k}": np.arange(num_rows) * k for k in range(4)}
    obs = pd.DataFrame(columns, index=[f"cell{row}" for row in range(num_rows)])
    assert obs.memory_usage(deep=True).sum() > 2 * 2**20
    made = anndata.AnnData(X=sp.csr_matrix((num_rows, 5), dtype="f4"), obs=obs)
    assert peak_of(made, tmp_path / "c.zarr", memory_budget="2MB", dataset_size=3_500) < 2 * 2**20


def test_matrices_by_columns_stay_below_the_budget(tmp_path):
    """A CSC matrix of 1.5 MB is turned to rows and written in 2 MB, where two of them would take more."""
    DatasetCollection(tmp_path / "warm.zarr").add_adatas([cells(50)])
    made = cells(1_300)
    made.X = made.X.tocsc()
    rows = made.X.tocsr()
    assert peak_of(made, tmp_path / "c.zarr", memory_budget="2MB") < 2 * 2**20
    [place] = (tmp_path / "c.zarr").glob("dataset_*")
    back = anndata.read_zarr(place)
    signed = back.X.indices.astype("i4")  # SciPy compares no others
    found = sp.csr_matrix((back.X.data, signed, back.X.indptr), shape=back.shape)
    assert (rows[back.obs["src_row"].to_numpy()] != found).nnz == 0
