"""`gather_rows`: predictions of all ranks, in the order of the samples, each sample once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError, DesyncError
from rankwise.metrics.host import is_tensor
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.data.contract import IntArray


def gather_rows(
    rows: Any, ids: Any = None, world: World | None = None, *, weights: Any = None
) -> tuple[Any, IntArray] | None:
    """Gather the rows of all ranks on the main rank, sorted by sample id. Every rank must call it.

    The ranks may have different numbers of rows, including none.

    Args:
        rows: tensor, array or list with the samples on its first axis, or a dict of these.
        ids: int[B], the sample of each row; None keeps all rows, by rank.
        world: default ``World.current()``.
        weights: float[B] or None; rows of weight 0 (padding) are dropped.

    Returns:
        On the main rank (rows, ids): rows of the same type (tensors on the CPU), ids int64. If a sample has several
        rows, that of the lowest rank is kept. Without `ids`, they are ``0, 1, 2, ...``. None on the other ranks.

    Raises:
        ConfigError: the lengths differ.
        DesyncError: another rank failed, or the ranks' rows have different types.
    """
    world = World.current() if world is None else world
    error: Exception | None = None
    mine: tuple[dict[str | None, Any], IntArray | None] = ({}, None)
    try:
        mine = _mine(rows, ids, weights)
    except Exception as caught:  # noqa: BLE001  (the other ranks are in the collective)
        error = caught
    world.raise_together(error)
    gathered = world.gather_object(mine)
    # the main rank may still find different types: raise that error on every rank too
    result: tuple[Any, IntArray] | None = None
    try:
        if gathered is not None:
            result = _merged(gathered)
    except Exception as caught:  # noqa: BLE001
        error = caught
    world.raise_together(error)
    return result


def _mine(rows: Any, ids: Any, weights: Any) -> tuple[dict[str | None, Any], IntArray | None]:
    fields = {
        name: _field(name, column) for name, column in (rows.items() if isinstance(rows, Mapping) else [(None, rows)])
    }
    columns = {f"field {name!r}" if name is not None else "rows": column for name, column in fields.items()}
    sample = None if ids is None else np.asarray(ids.cpu() if is_tensor(ids) else ids).astype(np.int64)
    weight = None if weights is None else np.asarray(weights.cpu() if is_tensor(weights) else weights)
    lengths = {what: len(column) for what, column in columns.items()}
    lengths |= {what: len(column) for what, column in (("ids", sample), ("weights", weight)) if column is not None}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{what}: {length}" for what, length in lengths.items())
        raise ConfigError(f"gather_rows needs one row, id and weight per sample, got {told}")
    if weight is not None:
        keep = np.flatnonzero(weight != 0)
        fields = {name: _take(column, keep) for name, column in fields.items()}
        sample = None if sample is None else sample[keep]
    return fields, sample


def _field(name: str | None, column: Any) -> Any:
    if is_tensor(column):
        return column.detach().cpu()
    if isinstance(column, (np.ndarray, list)):
        return column
    if isinstance(column, tuple):
        return list(column)
    what = "rows" if name is None else f"field {name!r}"
    raise ConfigError(
        f"{what} is a {type(column).__name__}; gather_rows accepts tensors, arrays, lists and dicts of them"
    )


def _merged(gathered: Sequence[tuple[dict[str | None, Any], IntArray | None]]) -> tuple[Any, IntArray]:
    kinds = [(sorted(map(str, fields)), sample is None) for fields, sample in gathered]
    different = tuple(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
    if different:
        raise DesyncError(
            f"gather_rows needs the same fields on all ranks, with ids on all or none; ranks {list(different)} differ "
            "from rank 0",
            ranks=different,
        )
    rows = {name: _joined([fields[name] for fields, _ in gathered]) for name in gathered[0][0]}
    samples = [sample for _, sample in gathered if sample is not None]
    if samples:
        # unique returns the first occurrence of each id, in ascending order of ids
        ids, first = np.unique(np.concatenate(samples), return_index=True)
        rows = {name: _take(column, first) for name, column in rows.items()}
    else:
        ids = np.arange(len(next(iter(rows.values()), ())))
    return rows.get(None, rows), ids.astype(np.int64)


def _joined(columns: list[Any]) -> Any:
    # a rank without rows cannot know what the others' are like
    columns = [column for column in columns if len(column)] or columns[:1]
    if is_tensor(columns[0]):
        import torch

        return torch.cat(columns)
    if isinstance(columns[0], list):
        return [row for column in columns for row in column]
    return np.concatenate(columns)


def _take(column: Any, index: IntArray) -> Any:
    if isinstance(column, list):
        return [column[i] for i in index]
    if is_tensor(column):
        import torch

        return column[torch.from_numpy(index)]
    return column[index]
