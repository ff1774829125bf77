"""Some of the rows: by mask, by number, or as the parts of a split."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.data.order import part_at, place_of_group, place_of_samples
from rankwise.data.rows.blockwise import blocks, places_where, row_dtype, taken
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

__all__ = ["chosen_rows", "part_of_groups", "part_of_rows", "rows_of_part", "say_split"]

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
        found = places_where(num_rows, lambda part: given[part])
    elif given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0):
        found = _listed(given, num_rows)
    else:
        unknown = "; of truth values of which some are missing make mask.fillna(False).astype(bool)"
        raise ConfigError(
            f"rows= is a mask or a list of whole numbers, got {given.dtype}{list(given.shape)}"
            f"{unknown if given.dtype == object and given.ndim else ''}"
        )
    if len(found) == 0:
        raise ConfigError(f"rows= leaves none of {num_rows} rows")
    return found


def _listed(given: NDArray, num_rows: int) -> NDArray:
    if len(given) and (given.min() < 0 or given.max() >= num_rows):
        raise ConfigError(
            f"rows= wants numbers from 0 to {num_rows - 1}, got numbers from {given.min()} to {given.max()}"
        )
    found = given.astype(row_dtype(num_rows))
    found.sort()
    if (found[1:] == found[:-1]).any():
        raise ConfigError("rows= has a number several times: an epoch shows each row once")
    return found


def part_of_groups(groups: RowGroups, fractions: Sequence[float], *, seed: int, by: str = "group") -> NDArray:
    """Return the part of each row, [N] of the smallest unsigned dtype, where rows of a group stay together.

    A group goes where the hash of its label falls: parts are stretches of [0, 1) as long as their fractions, and
    len(fractions) = in none. So data that are added later move no group.

    Raises:
        ConfigError: fractions are out of range, or rows belong to no group.
    """
    if len(groups.codes) and groups.codes.min() < 0:
        raise ConfigError(
            f"{int((groups.codes < 0).sum())} rows have no value in the column {by!r}, by which they were to be split: "
            f"leave them out first, collection.subset(collection.obs([{by!r}])[{by!r}].notna()).split(...)"
        )
    places = np.array([place_of_group(label, seed) for label in groups.labels])
    return taken(part_at(places, fractions).astype(_part_dtype(fractions)), groups.codes)


def part_of_rows(rows: NDArray | range, fractions: Sequence[float], *, seed: int) -> NDArray:
    """Return the part of each row by a hash of its number; see `part_of_groups`."""
    found: NDArray = np.empty(len(rows), dtype=_part_dtype(fractions))
    for block in blocks(len(rows)):
        found[block] = part_at(place_of_samples(np.asarray(rows[block], dtype=np.int64), seed), fractions)
    return found


def rows_of_part(part: NDArray, number: int) -> NDArray:
    """Return the places, ascending, of a part among rows whose parts are told."""
    return places_where(len(part), lambda block: part[block] == number)


def _part_dtype(fractions: Sequence[float]) -> DType:
    return np.min_scalar_type(len(fractions))


def say_split(sizes: Sequence[int], names: Sequence[str], fractions: Sequence[float], total: int, by: str) -> None:
    """Say what came out; few groups seldom come out as asked.

    Raises:
        ConfigError: a part is empty.
    """
    text = ", ".join(
        f"{name}: {size} of {total} rows (asked for {fraction:.3g})"
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
