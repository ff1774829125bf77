"""Collections and datasets as a loader is given them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.datasets import check_files, find_datasets, load_anndata
from rankwise.data.rows.loader.requests import RowBlock
from rankwise.data.rows.matrices import (
    MatrixPlan,
    RowPointers,
    StoredDense,
    StoredMatrix,
    StoredSparse,
    find_gaps,
    open_matrix,
    stack_matrices,
    stray_columns,
)
from rankwise.data.store import BoxError, BoxReader, load_zarr
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import ConfigError, DataError, SampleError

__all__ = ["StoredRows", "adopt_matrix", "iter_groups", "load_group"]


def adopt_matrix(dataset: Any, reader: BoxReader) -> StoredMatrix:
    """Return a matrix that zarr-python or anndata has opened.

    Args:
        dataset: zarr.Array, or CSR matrix backed by a Zarr group.
        reader: will read it.

    Raises:
        DataError: it is damaged, or of a dtype that cannot be read.
    """
    if not hasattr(dataset, "group"):
        return StoredDense(array=reader.adopt(dataset))
    group = dataset.group
    data, indices, indptr = (reader.adopt(group[name]) for name in ("data", "indices", "indptr"))
    place = data.place.rpartition("/")[0]
    if "://" not in place:  # a folder: everything about it is read from there
        return open_matrix(place, reader)
    lengths = reader.adopt(group["row_nnz"]) if "row_nnz" in group else None
    num_cols = int(dataset.shape[1])
    pointers = RowPointers(indptr, data.shape[0], reader, lengths=lengths, num_cols=num_cols)
    if pointers.num_rows != dataset.shape[0]:
        raise DataError(
            f"{indptr.place} wants {dataset.shape[0] + 1} row pointers, one more than rows; it has "
            f"{pointers.num_rows + 1}: copy or write the matrix again"
        )
    return StoredSparse(place=place, num_cols=num_cols, data=data, indices=indices, pointers=pointers)


class StoredRows:
    """Rows of matrices in Zarr stores, one over the other.

    Args:
        matrices: all of one kind.
        reader: reads them.
    """

    def __init__(self, matrices: Sequence[StoredMatrix], reader: BoxReader) -> None:
        self._stack = stack_matrices(matrices)
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([matrix.num_rows for matrix in matrices], dtype=np.int64)
        self._reader = reader
        self._pool = MemoryPool()

    def read(self, rows: IntArray) -> RowBlock:
        """Read and decode rows straight into their order; what fails is told row by row.

        Args:
            rows: int64[n], rows over all matrices.

        Raises:
            DataError: there is trouble with the storage of row pointers.
        """
        plan = self._stack.plan(rows, self._reader)
        self._reader.hint(plan.boxes)
        arrays = self._arrays(plan)
        reports = stray_columns(plan, self._reader.read(plan.jobs(arrays)))
        errors: dict[int, DataError] = {}
        gaps = [] if plan.lengths is None else find_gaps(plan, reports, arrays[1])
        for error in (*plan.lost, *chain.from_iterable(report.errors for report in reports), *gaps):
            errors.setdefault(error.box, self._made(int(rows[error.box]), error))
        if plan.lengths is None:
            return RowBlock(arrays=arrays, num_cols=None, errors=errors)
        num_cols = self._stack.spec.shape[0]
        for place in _strays(arrays, num_cols):
            errors.setdefault(place, self._made(int(rows[place]), self._stray(place, int(rows[place]))))
        return RowBlock(arrays=arrays, num_cols=num_cols, errors=errors)

    def _made(self, row: int, error: BoxError) -> SampleError:
        matrix, local = self._where(row)
        said = SampleError(
            f"row {row} (row {local} of {matrix.place}) cannot be read: {error.error}",
            sample=row, place=error.place, damage=error.damage,
        )  # fmt: skip
        said.__cause__ = error.error
        return said

    def _stray(self, place: int, row: int) -> BoxError:
        matrix, _ = self._where(row)
        what = f"it names columns that the matrix has not (it has {self._stack.spec.shape[0]}): copy or write it again"
        return BoxError(box=place, place=matrix.place, error=DataError(what))

    def _where(self, row: int) -> tuple[StoredMatrix, int]:
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._matrices[number], row - int(self._ends[number]) + self._matrices[number].num_rows

    def _arrays(self, plan: MatrixPlan) -> tuple[NDArray, ...]:
        """Memory for one request: batches are views of it, and may be kept."""
        spec = self._stack.spec
        if plan.lengths is None:
            shape = (plan.num_rows, *spec.shape)
            return (self._pool.take(math.prod(shape), spec.dtype).reshape(shape),)
        count = plan.num_elements
        return (
            self._pool.take(count, spec.dtype),
            self._pool.take(count, self._stack.index_dtype),
            np.zeros(plan.num_rows + 1, dtype=np.int64),
        )


def _strays(arrays: tuple[NDArray, ...], num_cols: int) -> list[int]:
    """Places of rows with columns that there are not: damage that would let others write beyond their memory."""
    _, indices, indptr = arrays
    unsigned: IntArray = indices.view(
        np.uint32 if indices.itemsize == 4 else np.uint64
    )  # below 0 is then far too large
    if not len(unsigned) or unsigned.max() < num_cols:
        return []
    outside = np.flatnonzero(unsigned >= num_cols)
    places: list[int] = np.unique(np.searchsorted(indptr, outside, side="right") - 1).tolist()
    return places


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
