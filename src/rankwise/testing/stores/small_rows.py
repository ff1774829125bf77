"""Small matrices and AnnData stores for tests of rows."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.feed.memory.csr import csr_parts

__all__ = ["csr_parts", "random_csr", "sampled_rows", "small_anndata", "write_anndata", "write_csr"]


def random_csr(num_rows: int, num_cols: int, *, seed: int = 0, dtype: str = "f4", density: float = 0.2) -> Any:
    """Return a CSR matrix with sorted columns, some empty rows, and values from 1 to 250 by position."""
    import scipy.sparse

    rng = np.random.default_rng(seed)
    held = rng.random((num_rows, num_cols)) < density
    held[rng.random(num_rows) < 0.1] = False
    values = np.arange(num_rows * num_cols).reshape(num_rows, num_cols) % 250 + 1
    return scipy.sparse.csr_matrix(np.where(held, values, 0).astype(dtype))


def write_csr(group: Any, name: str, matrix: Any, *, chunk: int = 50, shard: int = 200, index_dtype: str = "i4") -> Any:
    """Write a CSR matrix into a Zarr group in AnnData's format, with the given chunk and shard sizes in elements."""
    held = group.create_group(name)
    held.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    for part, dtype in (("data", matrix.dtype), ("indices", index_dtype), ("indptr", "i8")):
        values = getattr(matrix, part).astype(dtype)
        sharded = part != "indptr" and matrix.nnz > 0
        array = held.create_array(
            part, shape=values.shape, dtype=values.dtype, chunks=(chunk,), shards=(shard,) if sharded else None
        )
        array[:] = values
    return held


def small_anndata(num_rows: int = 30, num_cols: int = 6, *, seed: int = 0) -> Any:
    """Return an AnnData with CSR X and counts, a dense obsm, and a category, a number and text for each row."""
    import anndata
    import pandas as pd

    rng = np.random.default_rng(seed)
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(rng.choice(["a", "b", "c"], num_rows), categories=["a", "b", "c"]),
            "n": np.arange(num_rows) + 1000 * seed,
            "name": [f"{seed}/{row}" for row in range(num_rows)],
        },
        index=[f"{seed}-{row}" for row in range(num_rows)],
    )
    var = pd.DataFrame({"mean": np.arange(num_cols) / 2}, index=[f"gene{k}" for k in range(num_cols)])
    made = anndata.AnnData(X=random_csr(num_rows, num_cols, seed=seed), obs=obs, var=var)
    made.layers["counts"] = random_csr(num_rows, num_cols, seed=seed + 100)
    made.obsm["pca"] = rng.random((num_rows, 3)).astype("f4")
    return made


def write_anndata(made: Any, place: str | os.PathLike[str], *, zarr_format: int = 3, sharded: bool = False) -> str:
    """Write an AnnData to a Zarr store of a format, sharded by anndata or unsharded; return its path."""
    import anndata

    chosen = {"zarr_write_format": zarr_format, "auto_shard_zarr_v3": sharded}
    with anndata.settings.override(**chosen), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata warns about future defaults
        made.write_zarr(place)
    return os.fspath(place)


def sampled_rows(sampler: Any, num_rows: int) -> list[IntArray]:
    """Return the rows of each batch of one epoch of a sampler whose load requests are slices, int64[rows of the batch].

    Args:
        sampler: any `rankwise.data.rows.abc.Sampler`.
        num_rows: rows of the loader.
    """
    found: list[IntArray] = []
    for request in sampler.sample(num_rows):
        rows = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
        found += [rows[split] for split in request["splits"]]
    return found
