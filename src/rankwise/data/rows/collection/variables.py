"""One table of variables out of those of all inputs, and where the columns of each go."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.datasets import load_anndata
from rankwise.errors import ConfigError

__all__ = ["choose_variables", "few_names", "gather_variables", "join_variables"]

_MOST = 60  # letters of a name


def join_variables(parts: Sequence[tuple[str, Any]], merge: str | None, join: str = "outer") -> Any:
    """Return the variables of all inputs.

    Names that come twice are taken as they are where all inputs have the same in the same order.

    Args:
        parts: (label, table) of each input.
        merge: how other columns come together, as in anndata.concat.
        join: "outer" takes the variables that any input has, "inner" those that all have.

    Raises:
        ConfigError: tables differ, and names of one come twice; or no variable is in all of them.
    """
    first = parts[0][1]
    if all(var.index.equals(first.index) for _, var in parts) and (len(parts) == 1 or not first.index.is_unique):
        return first
    for label, var in parts:
        _check_unique(var, label)
    strange = [label for label, var in parts if len(var) and len(first) and not var.index.isin(first.index).any()]
    if strange and join == "outer":
        warnings.warn(
            f"{few_names(strange)} has no variable in common with {parts[0][0]}, and gets columns of its own. If "
            "it only calls them otherwise, rename them with load_adata=",
            stacklevel=7,
        )
    anndata = load_anndata()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = [anndata.AnnData(var=var, shape=(0, len(var))) for _, var in parts]
        joined = anndata.concat(empty, join=join, merge=merge).var
    if not len(joined) and any(len(var) for _, var in parts):
        raise ConfigError(
            f"no variable is in all inputs, of which join='inner' takes none: {parts[0][0]} has "
            f"{few_names(list(first.index))}, {parts[-1][0]} {few_names(list(parts[-1][1].index))}"
        )
    return joined


def choose_variables(var: Any, names: Sequence[str]) -> Any:
    """Return some of the variables, in the order of the table; names that no input has are said.

    Raises:
        ConfigError: no input has any of them.
    """
    chosen = var[var.index.isin(names)]
    if not len(chosen):
        raise ConfigError(
            f"var_subset= has {len(names)} names, of which no input has any: it has {few_names(names)}, the inputs "
            f"{few_names(list(var.index))}"
        )
    lacking = sorted(set(names) - set(chosen.index))
    if lacking:
        warnings.warn(f"var_subset= has {len(lacking)} names that no input has: {few_names(lacking)}", stacklevel=6)
    return chosen


def gather_variables(mine: Any, var: Any, label: str) -> IntArray | None:
    """Return for each variable of an input its column, -1 = left out; None = they stay.

    Raises:
        ConfigError: its names come twice, and are not those of the table.
    """
    if mine.index.astype(str).equals(var.index.astype(str)):
        return None
    _check_unique(mine, label)
    _check_unique(var, "the collection")
    found: IntArray = var.index.get_indexer(mine.index).astype(np.int64)
    return found


def _check_unique(var: Any, label: str) -> None:
    twice = list(dict.fromkeys(var.index[var.index.duplicated()]))
    if twice:
        raise ConfigError(
            f"{label} has variables with one name, such as {few_names(twice)}, so that they cannot be brought "
            "together with others: call var_names_make_unique() of each AnnData, for files in load_adata="
        )


def few_names(names: Sequence[Any], *, letters: int = _MOST) -> str:
    """Return the first of some names, each cut to what a line can hold, for a message."""
    shown = [name if len(name) <= letters else f"{name[:letters]}..." for name in map(str, names[:5])]
    return ", ".join(shown) + (", ..." if len(names) > 5 else "")
