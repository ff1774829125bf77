"""Columns of observations: of one input, in memory or in a store, and of all inputs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.buckets import Field, as_texts, packed_texts
from rankwise.data.rows.datasets.on_disk import check_files
from rankwise.data.rows.datasets.search import load_anndata
from rankwise.data.rows.obs import warn_rounding
from rankwise.data.store.meta.codecs import is_core
from rankwise.errors import DataError

Kind = Literal["number", "masked", "category", "text"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One column."""

    name: str
    kind: Kind  # "number", including booleans; "masked" = nullable numbers; "category"; "text"
    # to slice, in memory or in a store: numbers, texts, or codes of categories with -1 for missing ones
    values: Any
    missing: Any = None  # to slice: which masked numbers or texts are missing
    categories: Any = None  # of a category: pandas Index
    ordered: bool = False  # whether the order of the categories has a meaning
    rows: IntArray | None = None  # which of the values belong to the column, in their order; None = all
    label: str = ""  # of the input, for messages

    @property
    def num_rows(self) -> int:
        """Number of values."""
        held = self.values if self.rows is None else self.rows
        return len(held) if isinstance(held, range) else int(held.shape[0])

    @property
    def dtype(self) -> DType:
        """The dtype of numbers."""
        return np.dtype(np.int64) if isinstance(self.values, range) else np.dtype(self.values.dtype)

    def block(self, start: int, stop: int) -> Any:
        """Read rows `start` to `stop`: numbers, a structured array (see `masked`), codes of categories, or texts."""
        try:
            if self.rows is None:
                return self._slice(start, stop)
            wanted = self.rows[start:stop]
            first, last = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
            whole = self._slice(first, last)
            return whole[wanted - first]
        except Exception as error:  # any error of a file format
            raise DataError(
                f"{self.label}: rows {start} to {stop} of obs column {self.name!r} cannot be read: {error}"
            ) from error

    def _slice(self, start: int, stop: int) -> Any:
        missing = None if self.missing is None else np.asarray(self.missing[start:stop])
        if self.kind == "text":
            held = self.values.asstr() if hasattr(self.values, "asstr") else self.values  # HDF5 has bytes
            texts = np.array(held[start:stop], dtype=object)
            if missing is not None:
                texts[missing] = None
            return as_texts(texts)
        values: NDArray = np.asarray(self.values[start:stop])
        if self.kind == "masked":
            made = np.empty(len(values), dtype=masked(values.dtype))
            made["value"], made["missing"] = values, missing
            return made
        return values.astype(np.int64) if self.kind == "category" else values


def masked(dtype: DType) -> DType:
    """Return the dtype of nullable numbers: a value, and whether it is missing."""
    return np.dtype([("value", dtype), ("missing", np.bool_)])


_SAMPLE = 1000
_OBJECT_BYTES = 64  # memory that Python needs for a short text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitedColumn:
    """One column over all inputs."""

    field: Field  # how its rows are moved
    kind: Kind  # see `Column`
    parts: tuple[Column | None, ...]  # the column of each input; None for an input without it
    categories: Any = None  # for a category: those of all inputs, in the order of first appearance
    ordered: bool = False  # whether that order has a meaning
    codes: tuple[IntArray | None, ...] = ()  # for each input the code of each of its categories

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.field.name

    def block(self, number: int, start: int, stop: int) -> Any:
        """Read rows of one input in the form in which they are moved."""
        part = self.parts[number]
        if part is None:
            return self._missing(stop - start)
        values = part.block(start, stop)
        if self.kind == "category":
            table = self.codes[number]
            assert table is not None
            return table[values].astype(self.field.dtype)  # index -1 selects the last entry, which is -1
        if self.kind == "text":
            return as_text(values, part)
        dtype, nullable = self.field.dtype, bool(values.dtype.names)
        if self.kind == "masked":
            made = np.zeros(len(values), dtype=dtype)
            made["value"] = values["value"] if nullable else values
            made["missing"] = values["missing"] if nullable else False
            return made
        if dtype.kind == "f":
            warn_rounding(self.name, values["value"][~values["missing"]] if nullable else values, part.label, dtype)
        if not nullable:
            return values.astype(dtype, copy=False)
        numbers = values["value"].astype(dtype)  # a float: anything else would be masked
        numbers[values["missing"]] = np.nan
        return numbers

    def finish(self, values: Any) -> Any:
        """Turn moved rows back into a column of pandas and anndata."""
        import pandas as pd

        if self.kind == "category":
            return pd.Categorical.from_codes(values, categories=self.categories, ordered=self.ordered)
        if self.kind == "text":
            return pd.array(values, dtype="string") if pd.isna(values).any() else values
        if self.kind == "masked":
            made = (pd.arrays.BooleanArray, pd.arrays.IntegerArray)[values["value"].dtype.kind in "iu"]
            return made(values["value"].copy(), values["missing"].copy())
        return values

    def _missing(self, count: int) -> NDArray:
        if self.kind == "text":
            return np.full(count, None, dtype=object)
        if self.kind == "category":
            return np.full(count, -1, dtype=self.field.dtype)
        if self.kind == "masked":
            made = np.zeros(count, dtype=self.field.dtype)
            made["missing"] = True
            return made
        return np.full(count, np.nan, dtype=self.field.dtype)


def unite_columns(parts: Sequence[Column | None]) -> UnitedColumn:
    """Combine the columns of one name.

    Categories are merged. Integers that an input lacks become floats (see `warn_rounding`), and booleans nullable
    booleans. Nullable numbers become floats with NaN beside floats. Texts, and columns of different kinds, become text.

    Raises:
        DataError: a category has no form in UTF-8; a sample of a column cannot be read.
    """
    held = [part for part in parts if part is not None]
    kinds = {part.kind for part in held}
    name, gaps = held[0].name, len(held) < len(parts)
    for part in held:
        try:
            as_texts(() if part.categories is None else part.categories)
        except DataError as error:
            raise DataError(f"the categories of obs column {name!r} of {part.label}: {error}") from error
    if kinds == {"category"} and all(part.categories.dtype.kind == held[0].categories.dtype.kind for part in held):
        united = held[0].categories
        for part in held[1:]:
            united = united.append(part.categories[~part.categories.isin(united)])
        codes: DType = np.min_scalar_type(-max(1, len(united)))
        return UnitedColumn(
            field=Field(name=name, kind="dense", dtype=codes, row_bytes=codes.itemsize),
            kind="category",
            parts=tuple(parts),
            categories=united,
            ordered=all(part.ordered and part.categories.equals(held[0].categories) for part in held),
            codes=tuple(
                None if part is None else np.append(united.get_indexer(part.categories), -1).astype(np.int64)
                for part in parts
            ),
        )
    if kinds <= {"number", "masked"}:
        dtype = np.result_type(*(part.dtype for part in held))
        truth = dtype.kind == "b"
        if (gaps and truth) or ("masked" in kinds and dtype.kind not in "fc"):
            field = Field(name=name, kind="dense", dtype=masked(dtype), row_bytes=dtype.itemsize + 1)
            return UnitedColumn(field=field, kind="masked", parts=tuple(parts))
        if gaps and dtype.kind in "iu":
            dtype = np.dtype(np.float64)
        field = Field(name=name, kind="dense", dtype=dtype, row_bytes=dtype.itemsize)
        return UnitedColumn(field=field, kind="number", parts=tuple(parts))
    sizes = []
    for part in held:
        sample: Any = part.block(0, min(_SAMPLE, part.num_rows)) if part.kind == "text" else ()
        sizes.append(len(packed_texts(sample)[1]) / len(sample) if len(sample) else 16.0)
    row_bytes = _OBJECT_BYTES + max(sizes)
    return UnitedColumn(field=Field(name=name, kind="text", row_bytes=row_bytes), kind="text", parts=tuple(parts))


def as_text(values: NDArray, part: Column) -> NDArray:
    """Return rows of a column as texts; see `as_texts`."""
    if part.kind == "text":
        return values
    if part.kind == "category":
        names = [*part.categories.tolist(), None]  # index -1 selects the last one
        return as_texts([names[code] for code in values.tolist()])
    if part.kind == "masked":
        texts = values["value"].astype(object)
        texts[values["missing"]] = None
        return as_texts(texts)
    return as_texts(values.astype(object))


def columns_of_frame(frame: Any, label: str) -> tuple[Column, dict[str, Column]]:
    """Return the names of the rows of a pandas table, and its columns by name.

    Raises:
        DataError: a column contains values that AnnData stores cannot hold.
    """
    twice = list(dict.fromkeys(frame.columns[frame.columns.astype(str).duplicated()]))
    if twice:
        raise DataError(f"obs of {label} has several columns named {twice[0]!r}: give each its own name")
    names = frame.index.astype(str) if frame.index.hasnans else frame.index
    columns = {str(name): _column(str(name), frame[name], label) for name in frame}
    return Column(name="index", kind="text", values=names), columns


# types of Python objects, all of one type, that have a better dtype
_INFERRED = ("boolean", "integer", "floating", "mixed-integer-float")


def _column(name: str, series: Any, label: str) -> Column:
    import pandas as pd

    unfit = ""
    if series.dtype == object:
        held = pd.api.types.infer_dtype(series, skipna=True)
        if held in _INFERRED:
            series = series.convert_dtypes() if series.isna().any() else series.infer_objects()
        elif held not in {"string", "empty"}:
            unfit = held
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes, order = series.cat.codes.to_numpy(), bool(dtype.ordered)
        return Column(name=name, kind="category", values=codes, categories=dtype.categories, ordered=order)
    if isinstance(dtype, np.dtype) and is_core(dtype):
        return Column(name=name, kind="number", values=series.to_numpy())
    if hasattr(dtype, "numpy_dtype") and dtype.kind in "biuf":
        kind = dtype.numpy_dtype
        if kind.kind == "f":  # AnnData stores have no other representation for these
            return Column(name=name, kind="number", values=series.to_numpy(dtype=kind, na_value=np.nan))
        values = series.to_numpy(dtype=kind, na_value=kind.type(0))
        return Column(name=name, kind="masked", values=values, missing=series.isna().to_numpy())
    if not pd.api.types.is_object_dtype(dtype) and not pd.api.types.is_string_dtype(dtype):
        unfit = str(dtype)
    if unfit:
        raise DataError(
            f"obs column {name!r} of {label} holds {unfit}, which AnnData cannot store: convert it to text, numbers or "
            "categories, or drop it, with load_adata="
        )
    return Column(name=name, kind="text", values=series.to_numpy(dtype=object))


_NULLABLE: dict[str, Kind] = {
    "nullable-integer": "masked",
    "nullable-boolean": "masked",
    "nullable-string-array": "text",
}


def open_columns(group: Any, label: str) -> tuple[Column, dict[str, Column]]:
    """Open a table of observations in the format of anndata, in Zarr or HDF5.

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
    except KeyError:  # an unknown format
        try:
            frame = load_anndata().io.read_elem(group)
        except Exception as error:  # any error of a file format
            raise DataError(f"the table obs of {label} cannot be read: {error}") from error
        return columns_of_frame(frame, label)


def _stored_column(name: str, held: Any) -> Column:
    """Open a column; KeyError if its format is unknown."""
    import pandas as pd

    encoding = dict(held.attrs)["encoding-type"]
    if encoding == "categorical":
        categories = pd.Index(load_anndata().io.read_elem(held["categories"]))
        ordered = bool(dict(held.attrs).get("ordered", False))
        return Column(name=name, kind="category", values=held["codes"], categories=categories, ordered=ordered)
    if encoding == "string-array":
        return Column(name=name, kind="text", values=held)
    if encoding in _NULLABLE:
        return Column(name=name, kind=_NULLABLE[encoding], values=held["values"], missing=held["mask"])
    if encoding == "array" and held.dtype.kind in "biufc":
        return Column(name=name, kind="number", values=held)
    raise KeyError(encoding)
