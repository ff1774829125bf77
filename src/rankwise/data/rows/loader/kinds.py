"""What a loader reads from: the kinds of matrices, and what is refused."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from rankwise.data.rows.datasets import load_anndata

__all__ = ["Kind", "check_table", "kind_of"]

Kind: TypeAlias = Literal["backed sparse", "backed dense", "sparse", "dense"]

_TAKEN = "CSR matrices in Zarr stores (anndata.io.sparse_dataset), zarr.Array, scipy CSR matrices and numpy.ndarray"


def kind_of(dataset: Any) -> Kind:
    """Return what kind of matrix this is.

    Raises:
        TypeError: it is none that rows can be loaded from.
    """
    import scipy.sparse
    import zarr

    if isinstance(dataset, load_anndata().abc.CSRDataset):
        if not isinstance(dataset.group, zarr.Group):
            raise TypeError(
                "a CSR matrix in an HDF5 file (h5ad) cannot be read by several threads at once: write it to a Zarr "
                "store first (adata.write_zarr, or rankwise rows write), or load it into memory (X.to_memory())"
            )
        return "backed sparse"
    if isinstance(dataset, zarr.Array):
        return "backed dense"
    if isinstance(dataset, np.ndarray):
        return "dense"
    if isinstance(dataset, (scipy.sparse.csr_matrix, scipy.sparse.csr_array)):
        return "sparse"
    raise TypeError(
        f"rows are loaded from {_TAKEN}; got {type(dataset).__module__}.{type(dataset).__name__}: convert it "
        "(to_numpy(), tocsr()), write it to a collection (rankwise rows write), or, a Dataset of torch, take "
        "rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )


def check_table(name: str, table: Any, num_rows: int | None) -> None:
    """Refuse what is no table of so many rows.

    Raises:
        TypeError: it is no pandas.DataFrame.
        ValueError: it has another number of rows.
    """
    import pandas as pd

    from rankwise.errors import ConfigError

    if table is None:
        return
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"{name} must be a pandas DataFrame or None, got {type(table).__name__}")
    if num_rows is not None and len(table) != num_rows:
        raise ConfigError(f"{name} has {len(table)} rows where the matrix has {num_rows}: pass those of this matrix")
