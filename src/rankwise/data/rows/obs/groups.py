"""`RowGroups`: rows that belong together by a column, such as the cells of a donor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.blockwise import taken
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.obs.columns import is_categorical, joined_categories, joined_codes

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
