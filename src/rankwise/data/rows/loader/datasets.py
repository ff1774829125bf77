"""The datasets that were added to a loader: in stores and in memory, sparse or dense."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np

from rankwise.data.contract.values import short_hash
from rankwise.data.rows.datasets.on_disk import check_files
from rankwise.data.rows.datasets.search import find_datasets, load_anndata, open_group
from rankwise.data.rows.loader.requests import MemoryRows, RowsReader, StoredRows
from rankwise.data.rows.matrices.matrix import StoredDense, StoredMatrix, StoredSparse, open_matrix
from rankwise.data.rows.obs import join_tables
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError

Kind: TypeAlias = Literal["backed sparse", "backed dense", "sparse", "dense"]

_TAKEN = "CSR matrices in Zarr stores (anndata.io.sparse_dataset), zarr.Array, scipy CSR matrices and numpy.ndarray"


def kind_of(dataset: Any) -> Kind:
    """Return the kind of a matrix.

    Raises:
        TypeError: it is not a matrix from which rows can be loaded.
    """
    import scipy.sparse
    import zarr

    if isinstance(dataset, zarr.Array):
        return "backed dense"
    if isinstance(dataset, np.ndarray):
        return "dense"
    if isinstance(dataset, (scipy.sparse.csr_matrix, scipy.sparse.csr_array)):
        return "sparse"
    if isinstance(dataset, load_anndata().abc.CSRDataset):
        if not isinstance(dataset.group, zarr.Group):
            raise TypeError(
                "a CSR matrix in an HDF5 file (h5ad) cannot be read by several threads at once: write it to a Zarr "
                "store first (adata.write_zarr, or rankwise rows write), or load it into memory (X.to_memory())"
            )
        return "backed sparse"
    raise TypeError(
        f"rows are loaded from {_TAKEN}; got {type(dataset).__module__}.{type(dataset).__name__}: convert it "
        "(to_numpy(), tocsr()), write it to a collection (rankwise rows write), or, for a torch Dataset, use "
        "rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )


def check_table(name: str, table: Any, num_rows: int | None) -> None:
    """Refuse a table of another type or length."""
    import pandas as pd

    if table is None:
        return
    if not isinstance(table, pd.DataFrame):
        raise TypeError(f"{name} must be a pandas DataFrame or None, got {type(table).__name__}")
    if num_rows is not None and len(table) != num_rows:
        raise ConfigError(f"{name} has {len(table)} rows, but the matrix has {num_rows}: pass those of this matrix")


def adopt_matrix(dataset: Any, reader: BoxReader) -> StoredMatrix:
    """Wrap a zarr.Array, or a CSR matrix that anndata backs by a Zarr group.

    Raises:
        DataError: it is damaged, or has a dtype that cannot be read.
    """
    if not hasattr(dataset, "group"):
        return StoredDense.of(reader.adopt(dataset))
    group = dataset.group
    names = [name for name in ("data", "indices", "indptr", "row_nnz") if name in group]
    arrays = {name: reader.adopt(group[name]) for name in names}
    place = arrays["data"].place.rpartition("/")[0]
    if "://" not in place:  # a folder: everything about it is read from there
        return open_matrix(place, reader)
    return StoredSparse.of(place, tuple(map(int, dataset.shape)), arrays, reader)


_STORED: tuple[Kind, ...] = ("backed sparse", "backed dense")
_NONE = "No datasets added yet: call use_collection, add_adatas or add_datasets first"
_LOG = logging.getLogger("rankwise.rows")


class AddedDatasets:
    """The datasets of one loader. All have the same kind of matrix, row shape and columns."""

    def __init__(self, reader: BoxReader) -> None:
        self._reader = reader
        self._kind: Kind = "dense"
        self._type: type | None = None
        self._matrices: list[Any] = []
        self._obs: list[Any] = []
        self.var: Any = None  # table of the columns

    @property
    def num_rows(self) -> int:
        """Rows of all datasets."""
        return sum(int(matrix.shape[0]) for matrix in self._matrices)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        if not self._matrices:
            raise ConfigError(_NONE)
        return _shape(self._matrices[0])[1:]

    @property
    def matrix_type(self) -> type:
        """Type of the matrices that were added."""
        if self._type is None:
            raise ConfigError(_NONE)
        return self._type

    @property
    def fingerprint(self) -> str:
        """Hash of the matrices' metadata: equal for copies at other paths."""
        facts = [
            (_shape(matrix), np.dtype(matrix.dtype).str, matrix.fingerprint if self.is_stored else self._kind)
            for matrix in self._matrices
        ]
        return short_hash(facts)

    def add(self, matrix: Any, obs: Any, var: Any) -> None:
        """Add a dataset; if it does not fit, nothing changes.

        Raises:
            TypeError: the matrix or a table is of an unknown kind.
            ConfigError: it does not fit the existing datasets.
            DataError: it cannot be read.
        """
        kind, shape = kind_of(matrix), _shape(matrix)
        if len(shape) < 2:
            raise ConfigError(f"rows need a matrix or an array of at least 2 axes, got the shape {list(shape)}")
        check_table("obs", obs, shape[0])
        check_table("var", var, shape[1] if len(shape) == 2 else None)  # for images no axis matches the table
        self._check_fit(matrix, kind, shape, obs, var)
        held = adopt_matrix(matrix, self._reader) if kind in _STORED else matrix
        dtype, known = np.dtype(held.dtype), {np.dtype(matrix.dtype) for matrix in self._matrices}
        if known and dtype not in known:
            others = ", ".join(sorted(map(str, known)))
            joined = np.result_type(dtype, *known)
            _LOG.warning("a dataset of %s is added to others of %s: rows are read as %s", dtype, others, joined)
        self._kind, self._type, self.var = kind, self._type or type(matrix), var if self.var is None else self.var
        self._matrices.append(held)
        self._obs += [] if obs is None else [obs]

    @property
    def is_stored(self) -> bool:
        """Whether the matrices are in stores rather than in memory."""
        return self._kind in _STORED

    def open_rows(self) -> RowsReader:
        """Return a reader of rows of all datasets for the calling thread, with memory of its own."""
        return StoredRows(self._matrices, self._reader) if self.is_stored else MemoryRows(self._matrices)

    def obs(self) -> Any:
        """Return the table of all rows, or None; concatenated at the first call."""
        if not self._obs:
            return None
        self._obs = [join_tables(self._obs)]
        return self._obs[0]

    def _check_fit(self, matrix: Any, kind: Kind, shape: tuple[int, ...], obs: Any, var: Any) -> None:
        if not self._matrices:
            return
        if kind != self._kind:
            raise ConfigError(
                f"All datasets on a given loader must be of the same type {self._type}, got {type(matrix)}: bring them "
                "into one form, or use a loader for each"
            )
        if shape[1:] != self.row_shape:
            raise ConfigError(
                f"all datasets must have rows of the same shape, {list(self.row_shape)}; the new one has "
                f"{list(shape[1:])}: select their shared columns"
            )
        for name, given, has in (("obs", obs, bool(self._obs)), ("var", var, self.var is not None)):
            if (given is not None) != has:
                raise ConfigError(
                    f"a dataset {'without' if given is None else 'with'} {name} does not fit those that were added "
                    f"{'with' if has else 'without'}: pass {name} for all datasets or for none"
                )
        if var is not None and not self.var.equals(var):
            raise ConfigError("All datasets must have identical var tables, row for row; that of the new one differs")


def _shape(matrix: Any) -> tuple[int, ...]:
    return tuple(map(int, matrix.shape))


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
    matrix = group["X"]
    if not hasattr(matrix, "ndim"):  # a sparse matrix
        kind = matrix.attrs.get("encoding-type")
        if kind != "csr_matrix":
            raise TypeError(
                f"{matrix.store_path} holds {kind!r}: rows are read from CSR matrices and dense arrays; store it by "
                "rows, for example with adata.X = adata.X.tocsr()"
            )
        matrix = anndata.io.sparse_dataset(matrix)
    return anndata.AnnData(X=matrix, obs=anndata.io.read_elem(group["obs"]), var=pd.DataFrame(index=pd.Index(names)))
