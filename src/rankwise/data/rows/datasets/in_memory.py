"""`MemoryDataset`: an AnnData in memory, or an h5ad file small enough for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.rows.datasets.search import known_columns, load_anndata
from rankwise.data.rows.matrices.matrix import MemoryMatrix
from rankwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("layers", "obsm")
_SPARSE = ("csr_matrix", "csc_matrix")


def is_anndata(given: Any) -> bool:
    """Whether this is an AnnData object."""
    return hasattr(given, "obs_names") and hasattr(given, "var_names") and hasattr(given, "X")


def is_h5ad(place: Any) -> bool:
    """Whether this is the path of an HDF5 file."""
    return isinstance(place, (str, os.PathLike)) and os.fspath(place).endswith((".h5ad", ".h5", ".hdf5"))


class MemoryDataset:
    """An AnnData in memory or an h5ad file, with the same members as `Dataset`.

    Opening reads the names of the observations; matrices and columns of a file are read on first use.

    Attributes:
        obs_columns: columns of the table of observations, without its index.

    Raises:
        ConfigError: the AnnData is backed by a file.
        DataError: there is no such file, or it does not contain an AnnData.
    """

    def __init__(self, source: Any) -> None:
        self._source = os.fspath(source) if is_h5ad(source) else source
        self.is_file = isinstance(self._source, str)
        if not self.is_file and getattr(source, "isbacked", False):
            raise ConfigError(f"this AnnData is backed by {source.filename}: pass that path, or adata.to_memory()")
        self.place = self._source if self.is_file else f"the AnnData of {source.n_obs} x {source.n_vars} in memory"
        with self._open() as held:
            if self.is_file and held.attrs.get("encoding-type") != "anndata":
                raise DataError(f"{self.place} is not an AnnData file of a known format; {_TO_MEMORY}")
            for name in ("var", "obs"):
                table = self._element(held, name)
                if table is None:
                    raise DataError(f"{self.place} has no table {name}, so it is no whole AnnData file: write it again")
                if self.is_file and (not hasattr(table, "keys") or "column-order" not in table.attrs):
                    raise DataError(f"{self.place}/{name} is a table in an old format; {_TO_MEMORY}")
            columns = table.attrs["column-order"] if self.is_file else table.columns
            self.obs_columns = tuple(map(str, columns))

    def __repr__(self) -> str:
        return f"MemoryDataset({self.place}: {self.num_rows} rows)"

    @property
    def origin(self) -> MemoryDataset:
        """The object itself: it can be opened again."""
        return self

    @property
    def num_rows(self) -> int:
        """Observations."""
        return len(self._index)

    @property
    def raw(self) -> str | None:
        """Name of the matrix of `raw`; None = none."""
        with self._open() as held:
            return None if self._element(held, "raw") is None else "raw/X"

    @cached_property
    def matrices(self) -> tuple[str, ...]:
        """Names of matrices with readable rows: "X", "layers/counts", "obsm/X_pca", ..."""
        with self._open() as held:
            tables = {name: self._element(held, name) or {} for name in _TABLES}
            inside = [f"{name}/{key}" for name, table in tables.items() for key in sorted(map(str, table))]
            return (*([] if self._element(held, "X") is None else ["X"]), *inside)

    @cached_property
    def _identity(self) -> str:
        """Hash of the names of the observations in order; it detects ranks with other rows."""
        digest = hashlib.sha256()
        for name in self._index:
            digest.update(str(name).encode() + b"\0")
        return digest.hexdigest()[:16]

    def matrix(self, name: str = "X") -> MemoryMatrix:
        """Open a matrix; see `Dataset.matrix`."""
        if name not in (*self.matrices, self.raw):
            held = f"rows can be read from {', '.join(self.matrices)}" if self.matrices else "it holds no matrix at all"
            raise ConfigError(f"{self.place} has no {name!r}; {held}")
        with self._open() as held:
            shape, dtype, num_elements = _facts(self._element(held, name), f"{self.place}/{name}")
        if shape[0] != self.num_rows:
            raise DataError(f"{self.place}/{name} has {shape[0]} rows, but the table of observations {self.num_rows}")
        facts: dict[str, Any] = {"identity": self._identity, "is_file": self.is_file}
        return MemoryMatrix.of(
            f"{self.place}/{name}", shape, dtype, num_elements, load=partial(self._load, name), **facts
        )

    def obs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Read columns of the table of observations, with its index; see `Dataset.obs`."""
        import pandas as pd

        wanted = known_columns(columns, self.obs_columns, self.place)
        with self._open() as held:
            if not self.is_file:
                table: pd.DataFrame = held.obs.set_axis(held.obs.columns.astype(str), axis=1)
                twice = [name for name in wanted if self.obs_columns.count(name) > 1]
                if twice:
                    raise ConfigError(
                        f"{self.place} has several obs columns named {twice[0]!r}: give each its own name"
                    )
                return table[list(wanted)]
            return pd.DataFrame({name: self._read(held["obs"][name]) for name in wanted}, index=self._index)

    def column(self, name: str) -> Any:
        """Read one column of the table of observations: a NumPy or pandas array, without the index; see `obs`."""
        values = self.obs((name,))[name]
        return values.to_numpy() if isinstance(values.dtype, np.dtype) else values.array

    def var_names(self, modality: str = "") -> tuple[str, ...]:
        """Return the names of the variables."""
        if modality:
            raise ConfigError(f"{self.place} has no {modality!r}: modalities come from Zarr stores and collections")
        return tuple(map(str, self._names("var")))

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if not self.is_file:
            yield self._source
            return
        load_anndata()
        import h5py

        if not Path(self._source).exists():
            raise DataError(f"there is no file {self._source}")
        try:
            with h5py.File(self._source, "r") as file:
                yield file
        except (OSError, KeyError) as error:
            raise DataError(f"the h5ad file {self._source} cannot be read: {error}; copy or write it again") from error

    @cached_property
    def _index(self) -> Any:
        return self._names("obs")

    def _names(self, table: str) -> Any:
        import pandas as pd

        with self._open() as held:
            if not self.is_file:
                return getattr(held, table).index
            return pd.Index(self._read(held[table][held[table].attrs.get("_index", "_index")]))

    def _element(self, held: Any, name: str) -> Any:
        """Return a matrix, a table or a group of matrices; None = there is none."""
        if self.is_file:
            return held.get(name)
        table, _, key = name.partition("/")
        whole = getattr(held, table)
        return whole if not key else whole.X if table == "raw" else whole[key]

    def _load(self, name: str) -> Any:
        with self._open() as held:
            element = self._element(held, name)
            return self._read(element) if self.is_file else element

    def _read(self, element: Any) -> Any:
        try:
            return load_anndata().io.read_elem(element)
        except Exception as error:  # any error of a filter
            raise DataError(f"{self.place}{element.name} cannot be read: {error}") from error


_TO_MEMORY = "pass the AnnData that your reader makes of it, or write it with adata.write_h5ad"


def _facts(element: Any, place: str) -> tuple[tuple[int, ...], np.dtype[Any], int | None]:
    """Return shape and dtype of a matrix in memory or in a file, and the stored elements of a sparse one."""
    attributes = getattr(element, "attrs", {})
    if hasattr(element, "keys") and attributes.get("encoding-type") in _SPARSE:
        shape = tuple(map(int, attributes["shape"]))
        return shape, np.dtype(element["data"].dtype), int(element["data"].shape[0])
    if hasattr(element, "tocsr") and hasattr(element, "nnz"):
        return tuple(map(int, element.shape)), np.dtype(element.dtype), int(element.nnz)
    of_file = hasattr(element, "maxshape")  # an HDF5 dataset
    if (of_file or isinstance(element, np.ndarray)) and element.dtype.kind in "biuf":
        return tuple(map(int, element.shape)), np.dtype(element.dtype), None
    raise ConfigError(
        f"{place} is {type(element).__module__}.{type(element).__name__}: rows in memory must be NumPy arrays of "
        "numbers or SciPy sparse matrices; convert it, or write the data to a collection (rankwise rows write)"
    )
