"""Columns of tables on disk, of which only the categories are held in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.collection.columns.column import Column, masked
from rankwise.data.rows.collection.columns.in_memory import columns_of_frame, index_of_frame
from rankwise.data.rows.collection.moving import Text
from rankwise.data.rows.datasets import check_files, load_anndata
from rankwise.errors import DataError

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
        index = _column("index", group[str(attributes["_index"])])
        return index, {str(name): _column(str(name), group[str(name)]) for name in attributes["column-order"]}
    except KeyError:  # a way of storing that is not known here
        try:
            frame = load_anndata().io.read_elem(group)
        except Exception as error:  # whatever a file format raises
            raise DataError(f"the table obs of {label} cannot be read: {error}") from error
        return index_of_frame(frame), columns_of_frame(frame, label)


def _column(name: str, held: Any) -> Column:
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
            read=partial(_masked, values, held["mask"]),
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


def _masked(values: Any, mask: Any, start: int, stop: int) -> NDArray:
    made = np.empty(stop - start, dtype=masked(values.dtype))
    made["value"], made["missing"] = values[start:stop], mask[start:stop]
    return made
