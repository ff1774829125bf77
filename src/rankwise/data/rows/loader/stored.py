"""The inputs of a loader: collections and datasets, and their rows as blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.feed.memory.csr import scipy_csr
from rankwise.data.feed.memory.lease import Lease
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.datasets import check_files, find_datasets, load_anndata, open_group
from rankwise.data.rows.matrices import (
    MatrixPlan,
    RowPointers,
    StoredDense,
    StoredMatrix,
    StoredSparse,
    finished_plain,
    gather_rows,
    open_matrix,
    row_errors,
    stack_matrices,
)
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, DataError

__all__ = ["MemoryRows", "RowBlock", "RowsReader", "StoredRows", "adopt_matrix", "iter_groups", "load_group"]


def adopt_matrix(dataset: Any, reader: BoxReader) -> StoredMatrix:
    """Wrap a zarr.Array, or a CSR matrix that anndata backs by a Zarr group.

    Raises:
        DataError: it is damaged, or has a dtype that cannot be read.
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
            f"{indptr.place} needs {dataset.shape[0] + 1} row pointers, one more than rows; it has "
            f"{pointers.num_rows + 1}: copy or write the matrix again"
        )
    return StoredSparse(place=place, num_cols=num_cols, data=data, indices=indices, pointers=pointers)


_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Rows that were read."""

    # for dense rows one array [n, *row shape]; for a CSR matrix data [nnz], indices [nnz] and indptr [n + 1]
    arrays: tuple[NDArray, ...]
    num_cols: int | None  # columns of a CSR matrix; None for dense rows
    errors: Mapping[int, DataError]  # errors of rows, by their place in the block
    lease: Lease  # of their memory; leave it when other rows are needed

    def part(self, first: int, last: int) -> Any:
        """Return rows [first, last): a view of an array, or a CSR matrix over views."""
        for place in sorted(self.errors):
            if first <= place < last:
                raise self.errors[place]
        if self.num_cols is None:
            return self.arrays[0][first:last]
        data, indices, indptr = self.arrays
        begin, end = int(indptr[first]), int(indptr[last])
        pointers: IntArray = indptr[first : last + 1] - begin
        if end - begin <= _MOST_INT32 and indices.dtype == np.int32:
            pointers = pointers.astype(np.int32)  # both need one dtype for SciPy and torch
        return scipy_csr((data[begin:end], indices[begin:end], pointers), self.num_cols)


class StoredRows:
    """Rows of concatenated matrices of one kind in Zarr stores."""

    def __init__(self, matrices: Sequence[StoredMatrix], reader: BoxReader) -> None:
        self._stack = stack_matrices(matrices)
        self._matrices = tuple(matrices)
        self._reader = reader
        self._pool = MemoryPool()

    def read(self, rows: IntArray, lease: Lease) -> RowBlock:
        """Read and decode rows directly in the requested order; errors are reported for each row."""
        plan = self._stack.plan(rows, self._reader)
        self._reader.hint(plan.boxes)
        arrays, spec = self._arrays(plan, lease), self._stack.spec
        finished = finished_plain(plan, self._reader.read(plan.jobs(arrays)), arrays, spec)
        errors = row_errors(rows, self._matrices, {"": (plan, finished, spec)}, ids=rows, word="row")
        num_cols = None if plan.lengths is None else spec.shape[0]
        return RowBlock(arrays=arrays, num_cols=num_cols, errors=errors, lease=lease)

    def _arrays(self, plan: MatrixPlan, lease: Lease) -> tuple[NDArray, ...]:
        """Return memory for one request: batches are views of it, and may be kept."""
        spec = self._stack.spec
        if plan.lengths is None:
            shape = (plan.num_rows, *spec.shape)
            return (self._pool.take(math.prod(shape), spec.dtype, lease=lease).reshape(shape),)
        count = plan.num_elements
        return (
            self._pool.take(count, spec.dtype, lease=lease),
            self._pool.take(count, spec.index_dtype, lease=lease),
            np.zeros(plan.num_rows + 1, dtype=np.int64),
        )


class MemoryRows:
    """Rows of concatenated NumPy arrays, or of SciPy CSR matrices."""

    def __init__(self, matrices: Sequence[Any]) -> None:
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([len(m) if isinstance(m, np.ndarray) else m.shape[0] for m in matrices])

    def read(self, rows: IntArray, lease: Lease) -> RowBlock:
        """Return copies of rows, in their order."""
        is_dense = isinstance(self._matrices[0], np.ndarray)
        num_cols = None if is_dense else int(self._matrices[0].shape[1])
        return RowBlock(arrays=gather_rows(self._matrices, self._ends, rows), num_cols=num_cols, errors={}, lease=lease)


RowsReader: TypeAlias = StoredRows | MemoryRows
"""Reads rows in the requested order, in one thread at a time."""


def iter_groups(collection: Any) -> Iterator[Any]:
    """Yield the Zarr groups of a collection's datasets, or of several; for what it may be see `Loader.use_collection`.

    Raises:
        ConfigError: it is empty.
        TypeError: it is something else.
        DataError: there is nothing, or something else, at a path.
    """
    if isinstance(collection, (list, tuple)) and any(hasattr(one, "is_empty") for one in collection):
        for one in collection:
            yield from iter_groups(one)
        return
    if isinstance(collection, (str, os.PathLike, list, tuple)):
        for place in find_datasets(collection):
            yield open_group(place)
        return
    if not hasattr(collection, "is_empty"):
        raise TypeError(
            "use_collection needs a DatasetCollection, or the path of one or of AnnData stores, got "
            f"{type(collection).__name__}; an AnnData goes to add_adata, a matrix to add_dataset"
        )
    if collection.is_empty:
        raise ConfigError("the DatasetCollection is empty: add data with its add_adatas([...])")
    yield from collection


def load_group(group: Any) -> Any:
    """Return an AnnData with the X of a store (left on disk), all columns of obs, and the names of var."""
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
            f"{element.store_path} holds {kind!r}: rows are read from CSR matrices and dense arrays; store it by rows, "
            "for example with adata.X = adata.X.tocsr()"
        )
    return load_anndata().io.sparse_dataset(element)
