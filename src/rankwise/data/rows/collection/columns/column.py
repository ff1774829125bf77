"""`Column`: a column of the observations of one input, read in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rankwise.data.contract import DType, IntArray
from rankwise.data.rows.collection.moving import Text
from rankwise.errors import DataError

__all__ = ["Column", "Kind", "masked", "taken"]

_FLOAT: DType = np.dtype(np.float64)
Kind = Literal["number", "masked", "category", "text"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One column.

    Attributes:
        name: its name.
        kind: "number", also for truth values; "masked" = numbers that may be missing; "category"; "text".
        num_rows: its length.
        read: reads rows from one number to another: an array of numbers, a structured array (see `masked`), codes of
            categories with -1 for missing ones, or a `Text`.
        dtype: dtype of numbers.
        categories: of a category: pandas Index.
        ordered: whether the categories are in an order that means something.
        label: of the input, for messages.
    """

    name: str
    kind: Kind
    num_rows: int
    read: Callable[[int, int], Any]
    dtype: DType = _FLOAT
    categories: Any = None
    ordered: bool = False
    label: str = ""

    def block(self, start: int, stop: int) -> Any:
        """Read rows `start` to `stop`.

        Raises:
            DataError: they cannot be read.
        """
        try:
            return self.read(start, stop)
        except Exception as error:  # whatever a file format raises
            raise DataError(
                f"{self.label}: rows {start} to {stop} of obs column {self.name!r} cannot be read: {error}"
            ) from error


def masked(dtype: DType) -> DType:
    """Return the dtype of numbers that may be missing: a value, and whether it is missing."""
    return np.dtype([("value", dtype), ("missing", np.bool_)])


def taken(column: Column, rows: IntArray) -> Column:
    """Return a column of chosen rows of another one."""

    def read(start: int, stop: int) -> Any:
        wanted = rows[start:stop]
        if not len(wanted):
            return column.block(0, 0)
        first, last = int(wanted.min()), int(wanted.max()) + 1
        whole = column.block(first, last)
        return whole.take(wanted - first) if isinstance(whole, Text) else whole[wanted - first]

    return replace(column, read=read, num_rows=len(rows))
