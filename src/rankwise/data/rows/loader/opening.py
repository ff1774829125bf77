"""From collections and stores to AnnData objects that a loader takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rankwise.data.rows.datasets import check_files, find_datasets, load_anndata
from rankwise.data.store import load_zarr
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import ConfigError

__all__ = ["iter_groups", "load_group"]


def iter_groups(collection: Any) -> Iterator[Any]:
    """Yield the Zarr groups of a collection's datasets.

    Args:
        collection: `DatasetCollection`, or folder or URL of a collection or of one AnnData store, or a list of them.

    Raises:
        ConfigError: it is empty.
        TypeError: it is something else.
        DataError: there is nothing, or something else.
    """
    if isinstance(collection, (list, tuple)) and any(hasattr(one, "is_empty") for one in collection):
        for one in collection:
            yield from iter_groups(one)
        return
    if isinstance(collection, (str, os.PathLike, list, tuple)):
        for place in find_datasets(collection):
            store = RemoteFiles().zarr_store(place) if "://" in place else place
            yield load_zarr().open_group(store, mode="r")
        return
    if not hasattr(collection, "is_empty"):
        raise TypeError(
            "use_collection wants a DatasetCollection, or the place of one or of AnnData stores, got "
            f"{type(collection).__name__}; an AnnData goes to add_adata, a matrix to add_dataset"
        )
    if collection.is_empty:
        raise ConfigError("the DatasetCollection is empty: add data with its add_adatas([...])")
    yield from collection


def load_group(group: Any) -> Any:
    """Return an AnnData with the X of a store, left on disk, all columns of obs, and the names of var.

    Args:
        group: zarr.Group of an AnnData store.

    Raises:
        TypeError: X is neither CSR nor a dense array.
    """
    import pandas as pd

    anndata = load_anndata()
    var = group["var"]
    check_files(group, ["obs", "var"])
    names = anndata.io.read_elem(var[var.attrs["_index"]])
    return anndata.AnnData(
        X=_backed(group["X"]), obs=anndata.io.read_elem(group["obs"]), var=pd.DataFrame(index=pd.Index(names))
    )


def _backed(element: Any) -> Any:
    if hasattr(element, "ndim"):
        return element
    kind = element.attrs.get("encoding-type")
    if kind != "csr_matrix":
        raise TypeError(
            f"{element.store_path} holds {kind!r}: rows are read from CSR matrices and dense arrays; write it by rows, "
            "for example with adata.X = adata.X.tocsr()"
        )
    return load_anndata().io.sparse_dataset(element)
