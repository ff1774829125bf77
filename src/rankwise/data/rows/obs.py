"""Columns of obs, as arrays with their categories and as groups; and rows selected by mask, number or split."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray, NDArray
from rankwise.data.order import SplitRule, place_of_samples
from rankwise.data.rows.datasets.on_disk import AnyDataset
from rankwise.data.rows.notices import warn_once
from rankwise.errors import ConfigError

_BLOCK = 1 << 18  # values at a time, for one value per row: NumPy converts index arrays to 8 bytes per number


def blocks(num: int) -> Iterator[slice]:
    """Yield slices of at most 2^18 indices that cover [0, num)."""
    for start in range(0, num, _BLOCK):
        yield slice(start, min(start + _BLOCK, num))


def row_dtype(num_rows: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint32 and uint64 that holds row numbers and the row count."""
    return np.dtype(np.uint32 if num_rows < 2**32 else np.uint64)


def taken(values: NDArray, places: NDArray) -> NDArray:
    """Return ``values[places]``, using little more memory than the result; places may count from the end."""
    found: NDArray = np.empty((len(places), *values.shape[1:]), dtype=values.dtype)
    for part in blocks(len(places)):
        found[part] = values[places[part]]
    return found


def places_where(values: NDArray, wanted: int) -> NDArray:
    """Return the indices of the values that equal `wanted`, ascending, in `row_dtype`."""
    counts = [int(np.count_nonzero(values[part] == wanted)) for part in blocks(len(values))]
    found: NDArray = np.empty(sum(counts), dtype=row_dtype(len(values)))
    first = 0
    for part, count in zip(blocks(len(values)), counts, strict=True):
        inside = found[first : first + count]
        inside[:] = np.flatnonzero(values[part] == wanted)
        inside += part.start
        first += count
    return found


def num_stretches(values: NDArray, width: int) -> int:
    """Return how many intervals [k * width, (k + 1) * width) contain values; they are ascending and not empty."""
    found = 1
    for part in blocks(len(values)):
        stretch = values[max(0, part.start - 1) : part.stop] // width
        found += int(np.count_nonzero(stretch[1:] != stretch[:-1]))
    return found


_CODE = np.dtype(np.int32)
_MOST_TEXTS = 10_000  # more distinct texts are probably names of rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObsColumn:
    """A column in memory, in a compact dtype."""

    name: str
    spec: FieldSpec  # its form in batches: numbers as stored, int32 codes of categories
    # meaning of the codes, one table over all datasets; None for numbers. Code -1 = missing
    categories: tuple[Any, ...] | None
    values: NDArray  # one for each row; codes in the smallest dtype that holds them

    def take(self, rows: IntArray, out: NDArray) -> None:
        """Write the values of rows, int64[B], to an array [B] with the dtype of `spec`."""
        out[...] = self.values[rows]


def read_column(datasets: Sequence[AnyDataset], name: str) -> ObsColumn:
    """Read a column of all datasets.

    Text with few distinct values becomes categories, sorted. Categories have the order of the first dataset,
    followed by those that only later datasets have. Integers and booleans with missing values become floats with NaN:
    float32 if it holds all of them (up to 16 bits), else float64. Warns once where that rounds: integers beyond 2**53
    in a column with missing values, or in one that holds floats in another dataset.

    Raises:
        ConfigError: there is no such column, it has too many distinct texts, or its kind differs between datasets.
        DataError: it cannot be read.
    """
    parts = [_coded_text(name, dataset.column(name), dataset) for dataset in datasets]
    categorical = [is_categorical(part) for part in parts]
    if any(categorical) and not all(categorical):
        odd = datasets[categorical.index(False)]
        raise ConfigError(
            f"the obs column {name!r} is a category in some datasets, but not in {odd.place}: make it a category"
        )
    if all(categorical):
        table, maps = joined_categories(parts)
        codes = joined_codes(parts, maps, len(table))
        return ObsColumn(name=name, spec=FieldSpec(shape=(), dtype=_CODE), categories=table, values=codes)
    numbers = [_numbers(name, part, dataset) for part, dataset in zip(parts, datasets, strict=True)]
    values = numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype.kind == "f":
        for part, dataset in zip(parts, datasets, strict=True):
            warn_rounding(name, part, dataset.place, values.dtype)
    return ObsColumn(name=name, spec=FieldSpec(shape=(), dtype=values.dtype), categories=None, values=values)


def is_categorical(part: Any) -> bool:
    """Whether a column is categorical."""
    return hasattr(part, "codes") and hasattr(part, "categories")


def joined_categories(parts: Sequence[Any]) -> tuple[tuple[Any, ...], list[IntArray]]:
    """Return one table of categories, and for each part the new code of each of its codes, with -1 last for missing."""
    table: dict[Any, int] = {}
    maps = [
        np.array([*(table.setdefault(held, len(table)) for held in part.categories.tolist()), -1]) for part in parts
    ]
    return tuple(table), maps


def joined_codes(parts: Sequence[Any], maps: Sequence[IntArray], num_labels: int) -> NDArray:
    """Return the codes of concatenated categorical parts, in the smallest signed dtype; see `joined_categories`."""
    # the smallest one for codes of all labels, and -1
    dtype: DType = np.dtype(next(d for d in (np.int8, np.int16, np.int32) if num_labels <= np.iinfo(d).max + 1))
    codes = [np.asarray(part.codes) for part in parts]
    if len(parts) == 1 and codes[0].dtype == dtype and np.array_equal(maps[0][:-1], np.arange(len(maps[0]) - 1)):
        return codes[0]
    joined: NDArray = np.empty(sum(map(len, codes)), dtype=dtype)
    first = 0
    for held, to in zip(codes, maps, strict=True):
        narrow = to.astype(dtype)
        for block in blocks(len(held)):
            joined[first + block.start : first + block.stop] = narrow[held[block]]
        first += len(held)
    return joined


def _coded_text(name: str, part: Any, dataset: AnyDataset) -> Any:
    """Return a column unchanged, or text as categories."""
    import pandas as pd

    if is_categorical(part) or not (part.dtype.kind in "OTU" or pd.api.types.is_string_dtype(part.dtype)):
        return part
    found = pd.Categorical(part)
    if len(found.categories) > _MOST_TEXTS or not all(isinstance(held, str) for held in found.categories):
        raise ConfigError(
            f"the obs column {name!r} of {dataset.place} holds {len(found.categories)} different texts or objects, not "
            f"numbers: names of single rows cannot be in a batch (use batch.ids); make other columns "
            f"a category (adata.obs[{name!r}].astype('category')) and write the store again"
        )
    return found


def _numbers(name: str, part: Any, dataset: AnyDataset) -> NDArray:
    if isinstance(part, np.ndarray) and part.dtype.kind in "biuf":
        return part
    wanted = getattr(part.dtype, "numpy_dtype", None)  # set for pandas' nullable numbers
    if wanted is None or np.dtype(wanted).kind not in "biuf":
        raise ConfigError(
            f"the obs column {name!r} of {dataset.place} holds {part.dtype}, not numbers: make it a category "
            f"(adata.obs[{name!r}].astype('category')) and write the store again"
        )
    wanted = np.dtype(wanted)
    if not part.isna().any():
        numbers: NDArray = part.to_numpy(dtype=wanted)
        return numbers
    wanted = wanted if wanted.kind == "f" else np.result_type(wanted, np.float32)
    with_gaps: NDArray = part.to_numpy(dtype=wanted, na_value=np.nan)
    return with_gaps


def warn_rounding(name: str, part: Any, place: str, dtype: DType) -> None:
    """Warn once if a column holds integers that floats of `dtype` round."""
    exact = 2 ** (np.finfo(dtype).nmant + 1)
    stored = np.dtype(getattr(part.dtype, "numpy_dtype", part.dtype))
    if stored.kind not in "iu" or np.iinfo(stored).max <= exact:
        return
    known = part if isinstance(part, np.ndarray) else part[~part.isna()].to_numpy(dtype=stored)
    if len(known) and max(int(known.max()), -int(known.min())) > exact:  # looked at: most columns hold small ones
        warn_once(
            f"the obs column {name!r} of {place} holds {stored} and becomes {dtype}: integers beyond "
            f"{exact:,} are rounded. For names use a category (adata.obs[{name!r}].astype('category'))",
            key=f"obs {name} {stored} {dtype}",
        )


def name_list(names: Iterable[str], argument: str) -> list[str]:
    """Return names as a list.

    Raises:
        ConfigError: it is a single text, which would be read as a list of letters.
    """
    if isinstance(names, str):
        raise ConfigError(f"{argument}= must be a list of names, got the text {names!r}: write {argument}=[{names!r}]")
    return list(names)


def read_tables(datasets: Sequence[AnyDataset], columns: Sequence[str] | None) -> Any:
    """Return a pandas.DataFrame of columns of all datasets, concatenated, with their index; None = all.

    For a dataset without a column the values are missing. Warns once if integers then become floats that round them.
    """
    every = dict.fromkeys(name for dataset in datasets for name in dataset.obs_columns)
    wanted = list(every) if columns is None else name_list(columns, "columns")
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise ConfigError(f"there are no obs columns {unknown} in {datasets[0].place}; there are {list(every)}")
    held = [[name for name in wanted if name in dataset.obs_columns] for dataset in datasets]
    tables = [dataset.obs(names) for dataset, names in zip(datasets, held, strict=True)]
    joined = join_tables(tables)[wanted]
    for name, dtype in joined.dtypes.items():
        if isinstance(dtype, np.dtype) and dtype.kind == "f":
            for dataset, table in zip(datasets, tables, strict=True):
                if name in table:
                    warn_rounding(name, table[name].array, dataset.place, dtype)
    return joined


def join_tables(tables: Sequence[Any]) -> Any:
    """Concatenate tables; if categories differ they are merged, so that the column stays categorical."""
    import pandas as pd

    if len(tables) == 1:
        return tables[0]
    mixed: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for table in tables for name in table.columns):
        parts = [
            table[name].array if name in table.columns else pd.Categorical([None] * len(table)) for table in tables
        ]
        if all(map(is_categorical, parts)) and any(part.dtype != parts[0].dtype for part in parts):
            mixed[name] = parts
    joined = pd.concat([table.drop(columns=[*mixed], errors="ignore") for table in tables])
    for name, parts in mixed.items():
        labels, maps = joined_categories(parts)
        codes, dtypes = joined_codes(parts, maps, len(labels)), {part.dtype for part in parts if len(part.categories)}
        dtype = dtypes.pop() if len(dtypes) == 1 else pd.CategoricalDtype(list(labels))
        joined[name] = pd.Categorical.from_codes(codes, dtype=dtype)
    order = [*tables[0].columns, *(name for name in joined.columns if name not in tables[0].columns)]
    return joined[order]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """The group of each row."""

    labels: tuple[str, ...]  # names of the groups, as text: stable when data are added
    codes: NDArray  # [num_rows], an index into `labels`, in the smallest signed dtype; -1 = no group


def read_groups(datasets: Sequence[AnyDataset], name: str, rows: NDArray | None = None) -> RowGroups:
    """Read a column of all datasets as groups of equal values, for some rows or all. Accepts all kinds of values.

    Raises:
        ConfigError: there is no such column.
        DataError: it cannot be read.
    """
    import pandas as pd

    columns = (dataset.column(name) for dataset in datasets)
    parts = [column if is_categorical(column) else pd.Categorical(column) for column in columns]
    table, maps = joined_categories(parts)
    by_text = {text: number for number, text in enumerate(dict.fromkeys(map(str, table)))}
    same = np.array([*(by_text[str(held)] for held in table), -1], dtype=np.int64)
    codes = joined_codes(parts, [same[to] for to in maps], len(by_text))
    return RowGroups(labels=tuple(by_text), codes=codes if rows is None else taken(codes, rows))


_LOG = logging.getLogger("rankwise.rows")


def chosen_rows(rows: Any, num_rows: int) -> NDArray:
    """Return row numbers, sorted, in the smallest unsigned dtype for `num_rows`.

    Args:
        rows: bool[num_rows], or integers in any order, without duplicates.
        num_rows: how many rows there are.

    Raises:
        ConfigError: a mask has another length, a number is out of range or duplicate, or the selection is empty.
    """
    given = np.asarray(rows)
    if given.dtype == np.bool_:
        if given.shape != (num_rows,):
            raise ConfigError(f"a mask of rows must have the shape [{num_rows}], got {list(given.shape)}")
        found = places_where(given, 1)
    elif given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0):
        if len(given) and (given.min() < 0 or given.max() >= num_rows):
            raise ConfigError(
                f"rows= needs numbers from 0 to {num_rows - 1}, got numbers from {given.min()} to {given.max()}"
            )
        found = given.astype(row_dtype(num_rows))
        found.sort()
        if (found[1:] == found[:-1]).any():
            raise ConfigError("rows= has duplicate numbers: an epoch reads each row once")
    else:
        unknown = "; for booleans with missing values use mask.fillna(False).astype(bool)"
        raise ConfigError(
            f"rows= must be a mask or a list of integers, got {given.dtype}{list(given.shape)}"
            f"{unknown if given.dtype == object and given.ndim else ''}"
        )
    if len(found) == 0:
        raise ConfigError(f"rows= selects none of {num_rows} rows")
    return found


def split_rows(
    rows: NDArray | range, rule: SplitRule, *, by: str, stratify: str | None, groups_of: Callable[[str], RowGroups]
) -> list[NDArray]:
    """Return the places in `rows` of each part of a split; `groups_of` reads their groups. See `RowSource.split`."""
    strata = None if stratify is None else groups_of(stratify)
    if by == "row":
        part = part_of_rows(rows, rule, strata=strata)
    else:
        part = part_of_groups(groups_of(by), rule, by=by, strata=strata)
    members = [places_where(part, number) for number in range(len(rule.names))]
    sizes = [len(member) for member in members]
    rule.log_sizes(_LOG, repr(by), sizes, len(rows), [f"{size} of {len(rows)} rows" for size in sizes])
    return members


def part_of_groups(groups: RowGroups, rule: SplitRule, *, by: str, strata: RowGroups | None = None) -> NDArray:
    """Return the part of each row, [N] in the smallest unsigned dtype; rows of a group stay together.

    len(rule.names) = in no part. With `strata`, equal for all rows of a group, every part gets its fraction of each.

    Raises:
        ConfigError: fractions are out of range, there is no such group, a row has no group, or a group lies in several
            strata.
    """
    codes = groups.codes
    if len(codes) and codes.min() < 0:
        raise ConfigError(
            f"{int((codes < 0).sum())} rows have no value in the column {by!r} to split by: "
            f"exclude them first, collection.subset(collection.obs([{by!r}])[{by!r}].notna()).split(...)"
        )
    held = np.zeros(len(groups.labels), dtype=np.bool_)
    for block in blocks(len(codes)):
        held[codes[block]] = True
    present = np.flatnonzero(held)  # a subset may have few of them
    told = None if strata is None else _strata_of(groups, strata, by)[present]
    part: NDArray = np.zeros(len(groups.labels), dtype=np.min_scalar_type(len(rule.names)))
    part[present] = rule.parts([groups.labels[number] for number in present.tolist()], told)
    return taken(part, codes)


def part_of_rows(rows: NDArray | range, rule: SplitRule, *, strata: RowGroups | None = None) -> NDArray:
    """Return the part of each row by a hash of its number; see `part_of_groups`. An exact split sorts all rows."""
    if rule.members:
        raise ConfigError('groups= lists values of a column: set it with by="donor"; for rows by number use .subset()')
    dtype: DType = np.min_scalar_type(len(rule.names))
    if rule.exact or strata is not None:
        places = place_of_samples(np.asarray(rows, dtype=np.int64), rule.seed)
        return rule.shared_out(places, None if strata is None else strata.codes).astype(dtype)
    found: NDArray = np.empty(len(rows), dtype=dtype)
    for block in blocks(len(rows)):
        found[block] = rule.shared_out(place_of_samples(np.asarray(rows[block], dtype=np.int64), rule.seed))
    return found


def _strata_of(groups: RowGroups, strata: RowGroups, by: str) -> IntArray:
    """Return the stratum of each group, int64; missing values form a stratum, too."""
    found = np.full(len(groups.labels), -2, dtype=np.int64)
    for block in blocks(len(groups.codes)):
        found[groups.codes[block]] = strata.codes[block]
    for block in blocks(len(groups.codes)):
        odd = np.flatnonzero(found[groups.codes[block]] != strata.codes[block])
        if len(odd):
            label = groups.labels[groups.codes[block][odd[0]]]
            raise ConfigError(
                f"stratify= needs a column with one value for all rows of one {by!r}; {label!r} has several "
                'values: use by="row", or stratify by something else'
            )
    return found
