"""Several modalities of a MuData as one input: the rows that all of them have."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.columns import Column, columns_of_frame, index_of_frame, open_columns, taken
from rankwise.data.rows.collection.inputs.parts import Parts
from rankwise.data.rows.collection.placing import hash_names
from rankwise.errors import DataError

__all__ = ["join_modalities"]

_BLOCK = 2**16


def join_modalities(parts: Sequence[Parts], names: Sequence[str], whole: Any, label: str) -> Parts:
    """Put modalities side by side.

    Rows are the observations that all of them have, by name, in the order of the first one. Its columns come first,
    then those of the MuData itself, then those of the others as `modality:column`.

    Args:
        parts: the modalities.
        names: their names.
        whole: the MuData, or its group.
        label: of the input.

    Raises:
        DataError: a modality has names of observations that come twice.
    """
    hashes = [_unique(part.index, f"{label}/mod/{name}") for part, name in zip(parts, names, strict=True)]
    common = reduce(np.intersect1d, hashes)
    rows = _in_order_of_first([_rows_of(common, held) for held in hashes])
    if len(common) < max(len(held) for held in hashes):
        counts = ", ".join(f"{len(held)} in {name}" for held, name in zip(hashes, names, strict=True))
        warnings.warn(f"{label}: {len(common)} observations are in all of its modalities ({counts})", stacklevel=6)
    first, vars_ = parts[0], {"": parts[0].vars[""]}
    columns = {name: taken(column, rows[0]) for name, column in first.columns.items()}
    columns |= _own_columns(whole, label, columns, np.sort(common), hashes[0][rows[0]])
    matrices = {name: (held, rows[0]) for name, (held, _) in first.matrices.items()}
    for part, name, chosen in zip(parts[1:], names[1:], rows[1:], strict=True):
        vars_[name] = part.vars[""]
        for column in part.columns.values():
            columns[f"{name}:{column.name}"] = replace(taken(column, chosen), name=f"{name}:{column.name}")
        matrices |= {f"mod/{name}/{matrix}": (held, chosen) for matrix, (held, _) in part.matrices.items()}
    return Parts(taken(first.index, rows[0]), columns, vars_, matrices, any(part.raw for part in parts))


def _unique(index: Column, label: str) -> NDArray:
    found = _hashes(index)
    if len(np.unique(found)) < len(found):
        raise DataError(f"{label} has names of observations that come twice: its rows cannot be found by name")
    return found


def _hashes(index: Column) -> NDArray:
    starts = range(0, index.num_rows, _BLOCK)
    blocks = [hash_names(index.block(start, min(start + _BLOCK, index.num_rows))) for start in starts]
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint64)


def _rows_of(wanted: NDArray, held: NDArray) -> IntArray:
    order = np.argsort(held)
    rows: IntArray = order[np.searchsorted(held, wanted, sorter=order)]
    return rows


def _in_order_of_first(rows: Sequence[IntArray]) -> list[IntArray]:
    order = np.argsort(rows[0])
    return [held[order] for held in rows]


def _own_columns(
    whole: Any, label: str, known: dict[str, Column], common: NDArray, wanted: NDArray
) -> dict[str, Column]:
    """Columns of the MuData that are no copies of those of its modalities."""
    if hasattr(whole, "obs_names"):
        index, columns = index_of_frame(whole.obs), columns_of_frame(whole.obs, label)
    else:
        index, columns = open_columns(whole["obs"], label)
    mine = [column for name, column in columns.items() if ":" not in name and name not in known]
    if not mine:
        return {}
    held = _hashes(index)
    if len(np.unique(held)) < len(held) or not np.isin(common, held).all():
        warnings.warn(f"obs of {label} does not name the rows of its modalities; it is left out", stacklevel=7)
        return {}
    rows = _rows_of(wanted, held)
    return {column.name: taken(column, rows) for column in mine}
