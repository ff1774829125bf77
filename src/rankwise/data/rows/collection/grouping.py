"""What rows are sorted by, where a dataset is to hold its groups together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.columns import ObsColumn
from rankwise.data.rows.collection.joining import Joined
from rankwise.data.rows.collection.moving import Text
from rankwise.errors import ConfigError

__all__ = ["group_ranks"]


def group_ranks(joined: Joined, names: Sequence[str], block_rows: int) -> IntArray:
    """Return the rank of the group of each row of all inputs, int32[rows]: by the first column, then the next ones.

    Categories rank in their order, numbers and texts by value; missing ones come last.

    Args:
        joined: the inputs.
        names: columns of obs.
        block_rows: rows that are read at once.

    Raises:
        ConfigError: a column is missing in an input.
    """
    columns = [_column(joined, name) for name in names]
    ranks = np.zeros(joined.num_rows, dtype=np.int64)
    for column in columns:
        mine = _ranks(joined, column, block_rows)
        _, ranks = np.unique(ranks * (int(mine.max(initial=0)) + 1) + mine, return_inverse=True)
    return ranks.astype(np.int32)


def _column(joined: Joined, name: str) -> ObsColumn:
    found = next((column for column in joined.columns if column.name == name), None)
    if found is None:
        held = ", ".join(repr(column.name) for column in joined.columns)
        raise ConfigError(f"groupby wants columns of obs; no input has {name!r}, they have {held}")
    lacking = [held.label for held, part in zip(joined.inputs, found.parts, strict=True) if part is None]
    if lacking:
        raise ConfigError(
            f"groupby wants columns that all inputs have; {name!r} is missing in {', '.join(lacking)}: add it there "
            "with load_adata, or choose another column"
        )
    return found


def _ranks(joined: Joined, column: ObsColumn, block_rows: int) -> IntArray:
    blocks: list[Any] = [
        column.block(number, start, min(start + block_rows, held.num_rows))
        for number, held in enumerate(joined.inputs)
        for start in range(0, held.num_rows, block_rows)
    ]
    if column.kind == "category":
        codes = np.concatenate(blocks).astype(np.int64)
        return np.where(codes < 0, len(column.categories), codes)
    if column.kind == "text":
        return _text_ranks(blocks)
    values: NDArray = np.concatenate(blocks)
    if column.kind == "masked":
        _, ranks = np.unique(values["value"], return_inverse=True)
        return np.where(values["missing"], len(values), ranks)
    _, ranks = np.unique(values, return_inverse=True)  # NaN come last
    return ranks.astype(np.int64)


def _text_ranks(blocks: Sequence[Text]) -> IntArray:
    """Texts by value, of which each is kept once."""
    known: dict[str | None, int] = {}
    codes = [
        np.array([known.setdefault(text, len(known)) for text in block.objects()], dtype=np.int64) for block in blocks
    ]
    order = sorted(known, key=lambda text: (text is None, text or ""))
    rank = np.empty(len(known), dtype=np.int64)
    rank[[known[text] for text in order]] = np.arange(len(known))
    found: IntArray = rank[np.concatenate(codes)]
    return found
