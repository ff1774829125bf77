"""What is known about rows, over all datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["join_tables"]


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
