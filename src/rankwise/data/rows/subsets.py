"""Some of the rows: by mask, by number, or as the parts of a split."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.order import part_at, place_of_group, place_of_samples
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

__all__ = ["chosen_rows", "part_of_groups", "part_of_rows", "say_split"]

_LOG = logging.getLogger("rankwise.rows")


def chosen_rows(rows: Any, num_rows: int) -> NDArray:
    """Return row numbers, sorted, in the smallest unsigned dtype for `num_rows`.

    Args:
        rows: bool[num_rows], or whole numbers in any order, each once.
        num_rows: how many rows there are.

    Raises:
        ConfigError: a mask has another length, a number is out of range or there several times, or nothing is left.
    """
    given = np.asarray(rows)
    if given.dtype == np.bool_:
        if given.shape != (num_rows,):
            raise ConfigError(f"a mask of rows wants the shape [{num_rows}], got {list(given.shape)}")
        found = np.flatnonzero(given)
    elif given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0):
        found = np.sort(given)
    else:
        raise ConfigError(f"rows= is a mask or a list of whole numbers, got {given.dtype}{list(given.shape)}")
    if len(found) == 0:
        raise ConfigError(f"rows= leaves none of {num_rows} rows")
    if found[0] < 0 or found[-1] >= num_rows:
        raise ConfigError(f"rows= wants numbers from 0 to {num_rows - 1}, got numbers from {found[0]} to {found[-1]}")
    if (found[1:] == found[:-1]).any():
        raise ConfigError("rows= has a number several times: an epoch shows each row once")
    return found.astype(np.uint32 if num_rows <= 2**32 else np.uint64)


def part_of_groups(groups: RowGroups, fractions: Sequence[float], *, seed: int) -> IntArray:
    """Return the part of each row, int64[N], where rows of a group stay together; len(fractions) = in none.

    A group goes where the hash of its label falls: parts are stretches of [0, 1) as long as their fractions. So data
    that are added later move no group.

    Raises:
        ConfigError: fractions are out of range, or rows belong to no group.
    """
    if (groups.codes < 0).any():
        raise ConfigError(
            f"{int((groups.codes < 0).sum())} rows have no value in the column to split by: leave them out with rows= "
            "first, or fill it"
        )
    places = np.array([place_of_group(label, seed) for label in groups.labels])
    return part_at(places, fractions)[groups.codes]


def part_of_rows(rows: IntArray, fractions: Sequence[float], *, seed: int) -> IntArray:
    """Return the part of each row by a hash of its number, int64[N]; see `part_of_groups`."""
    return part_at(place_of_samples(rows, seed), fractions)


def say_split(sizes: Sequence[int], names: Sequence[str], fractions: Sequence[float], total: int, by: str) -> None:
    """Say what came out; few groups seldom come out as asked.

    Raises:
        ConfigError: a part is empty.
    """
    text = ", ".join(
        f"{name}: {size} of {total} rows (asked for {fraction:.0%})"
        for name, size, fraction in zip(names, sizes, fractions, strict=True)
    )
    empty = [name for name, size in zip(names, sizes, strict=True) if size == 0]
    if empty:
        raise ConfigError(
            f"the split by {by!r} leaves {', '.join(empty)} empty ({text}): take another seed, larger fractions or "
            "smaller groups"
        )
    _LOG.info("split by %r: %s", by, text)
    wrong = [abs(size / total - fraction) > fraction / 2 for size, fraction in zip(sizes, fractions, strict=True)]
    if any(wrong):
        warnings.warn(f"the split by {by!r} is far from what was asked for: {text}", stacklevel=4)
