"""Columns as they come: of frames in memory, and of stores, read in parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.collection.columns.column import Column, masked
from rankwise.data.rows.collection.moving import Text
from rankwise.data.rows.datasets import check_files, load_anndata
from rankwise.errors import DataError

__all__ = ["columns_of_frame", "index_of_frame"]


def columns_of_frame(frame: Any, label: str) -> dict[str, Column]:
    """Return the columns of a table of pandas.

    Raises:
        DataError: a column holds what AnnData stores cannot.
    """
    return {str(name): _column(str(name), frame[name], label) for name in frame}


def index_of_frame(frame: Any) -> Column:
    """Return the names of the rows of a table of pandas, or any other column of texts."""
    index = frame.index
    return Column(name="index", kind="text", num_rows=len(index), read=lambda a, b: Text.of(index[a:b].astype(str)))


def _column(name: str, series: Any, label: str) -> Column:
    import pandas as pd

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        return Column(
            name=name,
            kind="category",
            num_rows=len(series),
            read=lambda a, b: codes[a:b].astype(np.int64),
            categories=dtype.categories,
            ordered=bool(dtype.ordered),
        )
    if isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        values = series.to_numpy()
        return Column(name=name, kind="number", num_rows=len(series), read=lambda a, b: values[a:b], dtype=dtype)
    if pd.api.types.is_extension_array_dtype(dtype) and getattr(dtype, "kind", "O") in "biuf":
        return _masked(name, series)
    if dtype == object:  # noqa: E721  (a dtype, not a class)
        held = pd.api.types.infer_dtype(series, skipna=True)
        if held not in {"string", "empty"}:
            return _inferred(name, series, label, held)
    elif not pd.api.types.is_string_dtype(dtype):
        raise _unfit(name, label, str(dtype))
    texts = series.to_numpy(dtype=object)
    return Column(name=name, kind="text", num_rows=len(series), read=lambda a, b: Text.of(texts[a:b]))


def _masked(name: str, series: Any) -> Column:
    kind = series.dtype.numpy_dtype
    if kind.kind == "f":  # AnnData stores have no other way for these
        values = series.to_numpy(dtype=kind, na_value=np.nan)
        return Column(name=name, kind="number", num_rows=len(series), read=lambda a, b: values[a:b], dtype=kind)

    def read(start: int, stop: int) -> NDArray:
        part = series.iloc[start:stop]
        made = np.empty(len(part), dtype=masked(kind))
        made["missing"] = part.isna().to_numpy()
        made["value"] = part.to_numpy(dtype=kind, na_value=kind.type(0))
        return made

    return Column(name=name, kind="masked", num_rows=len(series), read=read, dtype=kind)


def _inferred(name: str, series: Any, label: str, held: str) -> Column:
    """A column of Python objects that are all of one kind after all."""
    if held not in {"boolean", "integer", "floating", "mixed-integer-float"}:
        raise _unfit(name, label, held)
    return _column(name, series.convert_dtypes() if series.isna().any() else series.infer_objects(), label)


def _unfit(name: str, label: str, held: str) -> DataError:
    return DataError(
        f"obs column {name!r} of {label} holds {held}, which AnnData stores cannot: make it text, numbers or "
        "categories, or leave it out, with load_adata="
    )


__all__ = ["open_columns"]

_TEXTS = ("string-array", "nullable-string-array")
_MASKED = ("nullable-integer", "nullable-boolean")


def open_columns(group: Any, label: str) -> tuple[Column, dict[str, Column]]:
    """Open a table of observations as anndata stores it, in Zarr or HDF5.

    Returns:
        The names of the rows, and the columns by name.

    Raises:
        DataError: it cannot be read.
    """
    try:
        attributes = dict(group.attrs)
        check_files(group, map(str, (attributes["_index"], *attributes["column-order"])))
        index = _stored_column("index", group[str(attributes["_index"])])
        return index, {str(name): _stored_column(str(name), group[str(name)]) for name in attributes["column-order"]}
    except KeyError:  # a way of storing that is not known here
        try:
            frame = load_anndata().io.read_elem(group)
        except Exception as error:  # whatever a file format raises
            raise DataError(f"the table obs of {label} cannot be read: {error}") from error
        return index_of_frame(frame), columns_of_frame(frame, label)


def _stored_column(name: str, held: Any) -> Column:
    """Open one; KeyError if it is stored in an unknown way."""
    encoding = dict(held.attrs)["encoding-type"]
    if encoding == "categorical":
        codes = held["codes"]
        return Column(
            name=name,
            kind="category",
            num_rows=codes.shape[0],
            read=lambda a, b: np.asarray(codes[a:b]).astype(np.int64),
            categories=_categories(held),
            ordered=bool(dict(held.attrs).get("ordered", False)),
        )
    if encoding in _TEXTS:
        values = held if encoding == "string-array" else held["values"]
        read = partial(_texts, values, None if values is held else held["mask"])
        return Column(name=name, kind="text", num_rows=values.shape[0], read=read)
    if encoding in _MASKED:
        values = held["values"]
        return Column(
            name=name,
            kind="masked",
            num_rows=values.shape[0],
            read=partial(_stored_masked, values, held["mask"]),
            dtype=values.dtype,
        )
    if encoding == "array" and held.dtype.kind in "biufc":
        return Column(
            name=name,
            kind="number",
            num_rows=held.shape[0],
            read=lambda a, b: np.asarray(held[a:b]),
            dtype=held.dtype,
        )
    raise KeyError(encoding)


def _categories(held: Any) -> Any:
    import pandas as pd

    return pd.Index(load_anndata().io.read_elem(held["categories"]))


def _texts(values: Any, mask: Any, start: int, stop: int) -> Text:
    part = values.asstr()[start:stop] if hasattr(values, "asstr") else values[start:stop]
    texts = np.array(part, dtype=object)
    if mask is not None:
        texts[np.asarray(mask[start:stop])] = None
    return Text.of(texts)


def _stored_masked(values: Any, mask: Any, start: int, stop: int) -> NDArray:
    made = np.empty(stop - start, dtype=masked(values.dtype))
    made["value"], made["missing"] = values[start:stop], mask[start:stop]
    return made
