"""Tables of one input: matrices by rows; those stored by columns are turned into rows via the disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.buckets import Buckets, Field
from rankwise.data.rows.datasets.search import COLLECTION_TYPE, find_datasets, load_anndata
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.tree import STORES
from rankwise.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columnwise:
    """A CSC matrix, in memory or on disk, whose elements are read in pieces."""

    shape: tuple[int, int]
    dtype: DType
    indptr: IntArray  # int64[columns + 1], in memory
    indices: Any  # rows of the elements, column after column; any sliceable object
    data: Any
    label: str  # its location, for messages

    @classmethod
    def of(cls, held: Any, label: str) -> Columnwise:
        """Wrap a SciPy matrix, or a group of Zarr or HDF5."""
        stored = hasattr(held, "attrs")
        shape = held.attrs["shape"] if stored else held.shape
        indptr, indices, data = (held[n] if stored else getattr(held, n) for n in ("indptr", "indices", "data"))
        return cls(
            shape=(int(shape[0]), int(shape[1])),
            dtype=data.dtype,
            indptr=np.asarray(indptr[:]).astype(np.int64),
            indices=indices,
            data=data,
            label=label,
        )

    @property
    def nnz(self) -> int:
        """Number of stored elements."""
        return int(self.indptr[-1])

    def elements(self, start: int, stop: int) -> tuple[IntArray, NDArray, NDArray]:
        """Read elements: their rows, columns (int32) and values."""
        try:
            rows, values = np.asarray(self.indices[start:stop]), np.asarray(self.data[start:stop])
        except Exception as error:  # any error of a file format
            raise DataError(f"{self.label}: elements {start} to {stop} cannot be read: {error}") from error
        columns = np.searchsorted(self.indptr, np.arange(start, stop), side="right") - 1
        return rows.astype(np.int64), columns.astype(np.int32), values


_INDEX_BYTES = 8  # of a CSR element in memory
_NEAR = 256  # largest gap between wanted rows that is read rather than skipped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """One matrix of an input."""

    name: str  # "X", "layers/counts", "obsm/pca", "mod/protein/X", ...
    sparse: bool  # whether blocks are CSR matrices
    shape: tuple[int, ...]
    dtype: DType
    row_bytes: float  # average decoded bytes of a row
    held: Any  # the object to slice; the rows of a `Columnwise` exist only after it was turned
    rows: IntArray | None = None  # which of its rows belong to the input, in their order; None = all
    label: str = ""  # of the input, for messages

    @property
    def csr_row_bytes(self) -> float:
        """Average bytes of a row in memory as CSR; for a dense matrix as if no element were zero."""
        return self.row_bytes if self.sparse else math.prod(self.shape[1:]) * (self.dtype.itemsize + _INDEX_BYTES)

    @property
    def by_columns(self) -> bool:
        """Whether it must be turned before rows can be read."""
        return isinstance(self.held, Columnwise)

    def block(self, start: int, stop: int) -> Any:
        """Return rows `start` to `stop` as a CSR matrix or an array, in memory."""
        try:
            return self._slice(start, stop) if self.rows is None else self._pick(self.rows[start:stop])
        except Exception as error:  # any error of a file format
            raise DataError(f"{self.label}: rows {start} to {stop} of {self.name} cannot be read: {error}") from error

    def _slice(self, start: int, stop: int) -> Any:
        part = self.held[start:stop]
        part = part.compute() if hasattr(part, "compute") else part
        return part.tocsr() if self.sparse else np.asarray(part)

    def _pick(self, rows: IntArray) -> Any:
        """Read runs of neighbouring rows, and select the wanted rows from them."""
        wanted, places = np.unique(rows, return_inverse=True)
        runs = np.split(wanted, np.flatnonzero(np.diff(wanted) > _NEAR) + 1)
        parts = [self._slice(int(run[0]), int(run[-1]) + 1)[run - run[0]] for run in runs if len(run)]
        if not parts:
            return self._slice(0, 0)
        if self.sparse:
            import scipy.sparse as sp

            return sp.vstack(parts, format="csr")[places]
        return np.concatenate(parts)[places]


def table_of(name: str, held: Any, label: str) -> Table | None:
    """Wrap a matrix of an AnnData; None if it has no numeric rows, for example a table.

    It may be a SciPy matrix, an array, a sparse dataset of anndata, a group of a sparse matrix, or an array of Zarr,
    HDF5 or dask.
    """
    import scipy.sparse as sp

    encoding, layout = dict(getattr(held, "attrs", {})).get("encoding-type"), getattr(held, "format", None)
    if encoding == "csr_matrix":
        held = load_anndata().io.sparse_dataset(held)
    elif encoding == "csc_matrix" or (layout == "csc" and (sp.issparse(held) or hasattr(held, "group"))):
        held = Columnwise.of(getattr(held, "group", held), f"{label}/{name}")
    elif sp.issparse(held) and layout != "csr":
        held = held.tocsr()
    shape, dtype = getattr(held, "shape", None), getattr(held, "dtype", None)
    if not shape or not isinstance(dtype, np.dtype) or dtype.kind not in "biufc":
        return None
    lazy = getattr(held, "_meta", None)
    sparse = sp.issparse(held) or hasattr(held, "to_memory") or sp.issparse(lazy) or isinstance(held, Columnwise)
    if not sparse:
        row_bytes = float(math.prod(shape[1:]) * dtype.itemsize)
    else:
        if hasattr(held, "nnz"):
            nnz = float(held.nnz)
        elif hasattr(held, "group"):  # a sparse dataset of anndata
            nnz = float(held.group["data"].shape[0])
        else:  # an estimate: a lazy matrix shows its size only when read
            nnz = math.prod(shape) / 10
        row_bytes = nnz / max(1, shape[0]) * (dtype.itemsize + _INDEX_BYTES)
    shape = tuple(shape)
    return Table(name=name, sparse=sparse, shape=shape, dtype=dtype, row_bytes=row_bytes, held=held, label=label)


_HDF5 = (".h5ad", ".h5mu", ".h5")


def spread_collections(sources: list[Any], folder: Path) -> list[tuple[Any, bool]]:
    """Return a flat list of inputs, each with a flag whether it is a dataset of a collection.

    Raises:
        ConfigError: that collection is among them.
        DataError: a collection is empty.
    """
    found: list[tuple[Any, bool]] = []
    for source in sources:
        place = resolve_place(source) if isinstance(source, (str, os.PathLike)) else ""
        is_store = place and not place.endswith(_HDF5) and ("://" in place or Path(place).is_dir())
        node = STORES.node(place) if is_store else None
        if node is None or node.attributes.get("encoding-type") != COLLECTION_TYPE:
            found.append((source, False))
            continue
        if Path(place).resolve() == folder.resolve():
            raise ConfigError(
                f"{folder} is among its own inputs: remove it to add the others, or pass reshuffle=True (--reshuffle) "
                "to bring its rows into one order with theirs"
            )
        found += [(dataset, True) for dataset in find_datasets(source)]
    return found


class RowsOfColumns:
    """A matrix stored by columns, whose rows can be read once all its elements were moved.

    Elements are read in pieces, in order, and spilled into files of neighbouring rows; a file is sorted by row in
    memory. Memory holds at most one piece or one block of rows. Blocks begin at multiples of `block_rows`; `piece` and
    `accepts` are as for `Buckets`.
    """

    def __init__(
        self, table: Table, folder: Path, block_rows: int, piece: str, accepts: Callable[[str, int], bool]
    ) -> None:
        assert isinstance(table.held, Columnwise)
        self.folder = folder
        self._held, self._table, self._block_rows = table.held, table, block_rows
        edges = np.append(np.arange(0, max(1, table.shape[0]), block_rows, dtype=np.int64), table.shape[0])
        fields = (
            Field(name="columns", kind="dense", dtype=np.dtype(np.int32)),
            Field(name="values", kind="dense", dtype=table.dtype),
        )
        self._buckets = Buckets(folder, edges, fields, piece, accepts)
        self.num_elements = table.held.nnz  # to move
        self._goes: IntArray | None = None  # the target of each row, -1 = none
        if table.rows is not None:
            self._goes = np.full(table.held.shape[0], -1, dtype=np.int64)
            self._goes[table.rows] = np.arange(len(table.rows))

    def spill(self, portion: int, start: int, stop: int) -> str:
        """Move elements to the files of their rows; return the piece, see `Buckets.add`."""
        rows, columns, values = self._held.elements(start, stop)
        if self._goes is not None:
            rows = self._goes[rows]
            kept = rows >= 0
            rows, columns, values = rows[kept], columns[kept], values[kept]
        return self._buckets.add(portion, rows, (columns, values))

    def block(self, start: int, stop: int) -> Any:
        """Return a block of rows as a CSR matrix; its columns are sorted if the input's elements were read in order."""
        import scipy.sparse as sp

        bucket = self._buckets.open(start // self._block_rows)
        counts = np.bincount(bucket.places - start, minlength=stop - start)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        shape = (stop - start, self._table.shape[1])
        return sp.csr_matrix((bucket.rows(1), bucket.rows(0), indptr), shape=shape)
