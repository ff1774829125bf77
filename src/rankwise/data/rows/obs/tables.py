"""Tables of obs, and groups of rows by their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.blockwise import taken
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.obs.columns import is_categorical, joined_categories, joined_codes
from rankwise.errors import ConfigError

__all__ = ["join_tables", "read_tables"]


def read_tables(datasets: Sequence[AnyDataset], columns: Sequence[str] | None) -> Any:
    """Return a pandas.DataFrame of columns of all datasets, one over the other, with their index.

    Args:
        datasets: at least one.
        columns: which; None = all. Where a dataset lacks one its rows have no value.

    Raises:
        ConfigError: no dataset has a column of that name, or `columns` is a text.
        DataError: a column cannot be read.
    """
    if isinstance(columns, str):
        raise ConfigError(f"columns is a list of names, got the text {columns!r}: write [{columns!r}]")
    every = dict.fromkeys(name for dataset in datasets for name in dataset.obs_columns)
    wanted = list(every) if columns is None else list(columns)
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise ConfigError(f"there are no obs columns {unknown} in {datasets[0].place}; there are {list(every)}")
    held = [[name for name in wanted if name in dataset.obs_columns] for dataset in datasets]
    joined = join_tables([dataset.obs(names) for dataset, names in zip(datasets, held, strict=True)])
    return joined[wanted]


def join_tables(tables: Sequence[Any]) -> Any:
    """Put tables one under the other; categories of a column that differ are united, so that it stays categorical.

    Args:
        tables: pandas.DataFrame, at least one.
    """
    import pandas as pd
    from pandas.api.types import union_categoricals

    if len(tables) == 1:
        return tables[0]
    common = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    mixed = [
        name
        for name in common
        if all(isinstance(table[name].dtype, pd.CategoricalDtype) for table in tables)
        and any(table[name].dtype != tables[0][name].dtype for table in tables)
    ]
    joined = pd.concat([table.drop(columns=mixed) for table in tables])
    for name in mixed:
        values = union_categoricals([table[name] for table in tables], ignore_order=True)
        joined[name] = values
    order = [*tables[0].columns, *(name for name in joined.columns if name not in tables[0].columns)]
    return joined[order]


__all__ = ["RowGroups", "read_groups"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """The group of each row.

    Attributes:
        labels: names of the groups, as text: what stays the same when data are added.
        codes: [num_rows], an index into `labels`, of the smallest signed dtype; -1 = the row belongs to none.
    """

    labels: tuple[str, ...]
    codes: NDArray

    def of(self, rows: NDArray) -> RowGroups:
        """Return the groups of some rows; labels stay."""
        return RowGroups(labels=self.labels, codes=taken(self.codes, rows))


def read_groups(datasets: Sequence[AnyDataset], name: str) -> RowGroups:
    """Read a column of all datasets as groups: equal values are one group. Categories, text and numbers will do.

    Raises:
        ConfigError: there is no such column.
        DataError: it cannot be read.
    """
    parts = [_categorical(dataset.column(name)) for dataset in datasets]
    table, maps = joined_categories(parts)
    by_text = {text: number for number, text in enumerate(dict.fromkeys(map(str, table)))}
    same = np.array([*(by_text[str(held)] for held in table), -1], dtype=np.int64)
    return RowGroups(labels=tuple(by_text), codes=joined_codes(parts, [same[to] for to in maps], len(by_text)))


def _categorical(part: Any) -> Any:
    import pandas as pd

    return part if is_categorical(part) else pd.Categorical(part)
