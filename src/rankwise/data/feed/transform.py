"""The samples that a loader reads, and their transforms on the reader thread."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import BaseSource, BatchBuffer, FieldSpec, IntArray, Order, Source
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.csr import fill_rows, is_sparse, one_row, row_spec
from rankwise.errors import ConfigError

BatchTransform: TypeAlias = Callable[[dict[str, Any], Any], Mapping[str, Any]]

_COLUMNS = "pass columns of numbers as arrays, ArraySource({'x': frame['x'].to_numpy()})"
_HDF5 = (
    "read small data into memory, ArraySource({'x': file['x'][:]}); for larger data write a torch Dataset that "
    "opens the file in each process"
)
_WAYS = {  # by the first part of a class's module, and its name; subclasses too
    "numpy.ndarray": "name the array as a field, ArraySource({'x': array}), and pass that to a SampleLoader",
    "torch.Tensor": "name the tensor as a field, ArraySource({'x': tensor}), and pass that to a SampleLoader",
    "zarr.Array": "name the array as a field, ArraySource({'x': array}), and pass that to a SampleLoader",
    "zarr.Group": "open its path, ArraySource.open(path), and pass that to a SampleLoader",
    "builtins.list": "convert it to an array, ArraySource({'x': np.asarray(values)})",
    "builtins.tuple": "convert it to an array, ArraySource({'x': np.asarray(values)})",
    "builtins.dict": "make a source from its arrays, ArraySource({'x': array}), and pass that to a SampleLoader",
    "h5py.Dataset": _HDF5,
    "h5py.Group": _HDF5,
    "pandas.DataFrame": _COLUMNS,
    "polars.DataFrame": _COLUMNS,
    "pyarrow.Table": _COLUMNS,
    "pandas.Series": "pass its values, ArraySource({'x': series.to_numpy()})",
    "xarray.DataArray": "pass its values, ArraySource({'x': array.to_numpy()}), or the path of its Zarr array",
    "xarray.Dataset": "write it to Zarr, dataset.to_zarr(path), and use ArraySource.open(path)",
    "dask.Array": "write it to Zarr, array.to_zarr(path), and use ArraySource({'x': path})",
    "scipy.spmatrix": "rows of sparse matrices are read by rankwise.data.rows (anndata.AnnData(matrix))",
    "scipy.sparray": "rows of sparse matrices are read by rankwise.data.rows (anndata.AnnData(matrix))",
    "anndata.AnnData": "its rows are read by rankwise.data.rows",
    "torch.DataLoader": "pass its dataset",
}
_FILES = {
    (".npy",): "pass the file, which is memory-mapped, ArraySource({'x': path})",
    (".npz",): "read its arrays, ArraySource(dict(np.load(path)))",
    (".h5", ".hdf5", ".he5", ".nc"): _HDF5,
    (".h5ad", ".h5mu"): "its rows are read by rankwise.data.rows",
    (".parquet", ".feather", ".arrow", ".csv", ".tsv"): f"read it as a table, then {_COLUMNS}",
    (".zarr", ".zip"): "open a Zarr group with ArraySource.open(path), an array in it with ArraySource({'x': path})",
    (".pt", ".pth"): "load its tensors, ArraySource({'x': tensor})",
    (".tar",): "unpack it",
}


def other_way(data: object) -> str:
    """Return what to do with refused data, for the end of a message; always mentions `DatasetLoader`.

    Args:
        data: array, table, dataset, or path.
    """
    if isinstance(data, (str, os.PathLike)):
        is_zarr = any(Path(data, name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))
        suffix = ".zarr" if is_zarr else Path(data).suffix.lower()
        way = next((way for suffixes, way in _FILES.items() if suffix in suffixes), "")
    else:
        kinds = [f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(data).__mro__]
        way = next((_WAYS[kind] for kind in kinds if kind in _WAYS), "")
        is_stream = isinstance(data, Iterable) and not hasattr(data, "__getitem__")
        if "torch.IterableDataset" in kinds or (not way and is_stream):
            return (
                "streams are not supported yet, since an order needs samples by index: list the samples in a map-style "
                "Dataset (__len__ and __getitem__, over files or offsets, say) for DatasetLoader(dataset, "
                "order=Order(len(dataset), batch_size=...)), or iterate over the stream in your own loop with Window"
            )
    return (
        f"{way}{'; ' * bool(way)}for any data with samples by index (files in a folder, HDF5, tables) write a "
        "map-style torch Dataset, DatasetLoader(dataset, order=Order(len(dataset), batch_size=...)): "
        "see the recipes in docs/samples.md"
    )


def counted_samples(source: Source, order: Order) -> Source:
    """Return the samples that the order counts: a source that can draw samples draws them for this order.

    Raises:
        ConfigError: this is not a source, or the order was made for other samples.
    """
    if not isinstance(source, BaseSource):
        own = "inherit from rankwise.data.contract.BaseSource" if "plan" in dir(type(source)) else other_way(source)
        raise ConfigError(
            f"a loader needs a source of samples, such as an ArraySource or a RowSource, got {type(source).__name__}: "
            f"{own}"
        )
    bound: Source = source.bound_to(order)
    return bound


def check_transform(name: str, call: str, given: Any) -> None:
    """Refuse what cannot be called with two arguments, where it is passed, not in the reader's thread.

    Args:
        name: the argument's name.
        call: how it is called, for the message.
        given: the function, or None.

    Raises:
        ConfigError: it is no function, or has other parameters.
    """
    if given is None:
        return
    if not callable(given):
        raise ConfigError(f"{name}= must be a function, called as {call}; got {given!r}")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ConfigError(f"{name}= is called as {call}, which {given!r} cannot be: {error}") from None


Transform: TypeAlias = Callable[[dict[str, Any], int], Mapping[str, Any]]


class SampleTransform:
    """Applies ``transform(fields, key)`` to one sample after the other and stacks what comes out.

    The first sample, and the first one after `begin`, decides the fields, shapes and dtypes; every later one must have
    the same.

    Args:
        transform: gets a dict of arrays (which it may change), ragged fields as SciPy CSR matrices of one row, and the
            sample's key; returns a dict of arrays, numbers, and sparse rows.
        num_cols: columns of the ragged input fields.
    """

    def __init__(self, transform: Transform, num_cols: Mapping[str, int] = MappingProxyType({})) -> None:
        self._transform = transform
        self._num_cols = num_cols
        self._first = -1
        self.specs: dict[str, FieldSpec] | None = None

    @property
    def num_cols(self) -> dict[str, int]:
        """Columns of the ragged output fields."""
        return {name: spec.shape[0] for name, spec in (self.specs or {}).items() if spec.ragged}

    def begin(self) -> None:
        """Begin an epoch, whose samples may have other shapes: a curriculum may change them."""
        self.specs = None

    def learn(self, raw: HostBuffer, names: tuple[str, ...], sample: int, key: int) -> None:
        """Set `specs` from the first sample of `raw`, for a rank that has no samples of its own yet."""
        self._one(self._row(raw, names, 0), sample, key)

    def apply(self, raw: HostBuffer, names: tuple[str, ...], ids: IntArray, keys: IntArray, into: BatchBuffer) -> None:
        """Transform every sample of `raw` into `into`.

        Args:
            raw: holds ``len(ids)`` samples of the fields `names`.
            names: the fields that go in.
            ids: int64[B], sample ids.
            keys: int64[B], their keys.
            into: receives the fields of `specs`.

        Raises:
            ConfigError: a sample has other fields, shapes or dtypes than the first, or contains objects.
        """
        made = (
            self._one(self._row(raw, names, place), sample, key)
            for place, (sample, key) in enumerate(zip(ids.tolist(), keys.tolist(), strict=True))
        )
        first = next(made, None)  # sets `specs`
        rows = made if first is None else itertools.chain([first], made)
        specs = self.specs or {}
        if any(spec.ragged for spec in specs.values()):
            fill_rows([{name: value.copy() for name, value in row.items()} for row in rows], specs, into)
            return
        into.reserve(specs, len(ids), {})
        for place, row in enumerate(rows):
            for name, array in row.items():
                into.arrays(name)[0][place] = array

    def _row(self, raw: HostBuffer, names: tuple[str, ...], place: int) -> dict[str, Any]:
        return {name: one_row(raw.arrays(name), place, self._num_cols.get(name)) for name in names}

    def _one(self, fields: dict[str, Any], sample: int, key: int) -> dict[str, Any]:
        try:
            made = self._transform(fields, key)
        except StopIteration as error:  # would end the generators that read, here and in a DataLoader's worker
            raise RuntimeError(f"transform= raised StopIteration for sample {sample} (key {key})") from error
        except Exception as error:
            error.add_note(f"in transform= of sample {sample} (key {key})")
            raise
        arrays = _checked(made, sample)
        if self.specs is None:
            self._first = sample
            self.specs = {name: row_spec(value) for name, value in arrays.items()}
        self._same(arrays, sample)
        return arrays

    def _same(self, made: Mapping[str, Any], sample: int) -> None:
        specs = self.specs or {}
        if specs.keys() != made.keys():
            raise ConfigError(
                f"transform= returned the fields {sorted(made)} for sample {sample}, but {sorted(specs)} for sample "
                f"{self._first}: return the same fields for every sample"
            )
        for name, value in made.items():
            spec = row_spec(value)
            if spec != specs[name]:
                raise ConfigError(
                    f"transform= made field {name!r} of sample {sample} {_said(spec)}, but {_said(specs[name])} of "
                    f"sample {self._first}: crop, pad or cast to one shape and dtype"
                )


def _said(spec: FieldSpec) -> str:
    return f"{'sparse ' if spec.ragged else ''}{spec.dtype}{list(spec.shape)}"


def _checked(made: Any, sample: int) -> dict[str, Any]:
    if not isinstance(made, Mapping):
        raise ConfigError(
            f"transform= must return a dict of fields, but returned {type(made).__name__} for sample {sample}: return "
            "the dict that it was given, changed"
        )
    fields = {name: value.tocsr() if is_sparse(value) else np.asarray(value) for name, value in made.items()}
    for name, value in fields.items():
        if value.dtype.hasobject:
            raise ConfigError(f"transform= made field {name!r} of sample {sample} an object: return numbers or arrays")
        if is_sparse(value) and (value.ndim != 2 or value.shape[0] != 1):
            raise ConfigError(
                f"transform= made field {name!r} of sample {sample} a sparse matrix {list(value.shape)}: return one "
                "row, [1, columns], or an array (value.toarray())"
            )
    return fields
