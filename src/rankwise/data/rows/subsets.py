"""Selects rows: by mask, by number, or as parts of a split."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.order import SplitRule, place_of_samples
from rankwise.data.rows.obs import RowGroups, blocks, places_where, row_dtype, taken
from rankwise.errors import ConfigError

_LOG = logging.getLogger("rankwise.rows")


def chosen_rows(rows: Any, num_rows: int) -> NDArray:
    """Return row numbers, sorted, in the smallest unsigned dtype for `num_rows`.

    Args:
        rows: bool[num_rows], or integers in any order, without duplicates.
        num_rows: how many rows there are.

    Raises:
        ConfigError: a mask has another length, a number is out of range or duplicate, or the selection is empty.
    """
    given = np.asarray(rows)
    if given.dtype == np.bool_:
        if given.shape != (num_rows,):
            raise ConfigError(f"a mask of rows must have the shape [{num_rows}], got {list(given.shape)}")
        found = places_where(given, 1)
    elif given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0):
        if len(given) and (given.min() < 0 or given.max() >= num_rows):
            raise ConfigError(
                f"rows= needs numbers from 0 to {num_rows - 1}, got numbers from {given.min()} to {given.max()}"
            )
        found = given.astype(row_dtype(num_rows))
        found.sort()
        if (found[1:] == found[:-1]).any():
            raise ConfigError("rows= has duplicate numbers: an epoch reads each row once")
    else:
        unknown = "; for booleans with missing values use mask.fillna(False).astype(bool)"
        raise ConfigError(
            f"rows= must be a mask or a list of integers, got {given.dtype}{list(given.shape)}"
            f"{unknown if given.dtype == object and given.ndim else ''}"
        )
    if len(found) == 0:
        raise ConfigError(f"rows= selects none of {num_rows} rows")
    return found


def split_rows(
    rows: NDArray | range, rule: SplitRule, *, by: str, stratify: str | None, groups_of: Callable[[str], RowGroups]
) -> list[NDArray]:
    """Return the places in `rows` of each part of a split; `groups_of` reads their groups. See `RowSource.split`."""
    strata = None if stratify is None else groups_of(stratify)
    if by == "row":
        part = part_of_rows(rows, rule, strata=strata)
    else:
        part = part_of_groups(groups_of(by), rule, by=by, strata=strata)
    members = [places_where(part, number) for number in range(len(rule.names))]
    sizes = [len(member) for member in members]
    rule.log_sizes(_LOG, repr(by), sizes, len(rows), [f"{size} of {len(rows)} rows" for size in sizes])
    return members


def part_of_groups(groups: RowGroups, rule: SplitRule, *, by: str, strata: RowGroups | None = None) -> NDArray:
    """Return the part of each row, [N] in the smallest unsigned dtype; rows of a group stay together.

    len(rule.names) = in no part. With `strata`, equal for all rows of a group, every part gets its fraction of each.

    Raises:
        ConfigError: fractions are out of range, there is no such group, a row has no group, or a group lies in several
            strata.
    """
    codes = groups.codes
    if len(codes) and codes.min() < 0:
        raise ConfigError(
            f"{int((codes < 0).sum())} rows have no value in the column {by!r} to split by: "
            f"exclude them first, collection.subset(collection.obs([{by!r}])[{by!r}].notna()).split(...)"
        )
    held = np.zeros(len(groups.labels), dtype=np.bool_)
    for block in blocks(len(codes)):
        held[codes[block]] = True
    present = np.flatnonzero(held)  # a subset may have few of them
    told = None if strata is None else _strata_of(groups, strata, by)[present]
    part: NDArray = np.zeros(len(groups.labels), dtype=np.min_scalar_type(len(rule.names)))
    part[present] = rule.parts([groups.labels[number] for number in present.tolist()], told)
    return taken(part, codes)


def part_of_rows(rows: NDArray | range, rule: SplitRule, *, strata: RowGroups | None = None) -> NDArray:
    """Return the part of each row by a hash of its number; see `part_of_groups`. An exact split sorts all rows."""
    if rule.members:
        raise ConfigError('groups= lists values of a column: set it with by="donor"; for rows by number use .subset()')
    dtype: DType = np.min_scalar_type(len(rule.names))
    if rule.exact or strata is not None:
        places = place_of_samples(np.asarray(rows, dtype=np.int64), rule.seed)
        return rule.shared_out(places, None if strata is None else strata.codes).astype(dtype)
    found: NDArray = np.empty(len(rows), dtype=dtype)
    for block in blocks(len(rows)):
        found[block] = rule.shared_out(place_of_samples(np.asarray(rows[block], dtype=np.int64), rule.seed))
    return found


def _strata_of(groups: RowGroups, strata: RowGroups, by: str) -> IntArray:
    """Return the stratum of each group, int64; missing values form a stratum, too."""
    found = np.full(len(groups.labels), -2, dtype=np.int64)
    for block in blocks(len(groups.codes)):
        found[groups.codes[block]] = strata.codes[block]
    for block in blocks(len(groups.codes)):
        odd = np.flatnonzero(found[groups.codes[block]] != strata.codes[block])
        if len(odd):
            label = groups.labels[groups.codes[block][odd[0]]]
            raise ConfigError(
                f"stratify= needs a column with one value for all rows of one {by!r}; {label!r} has several "
                'values: use by="row", or stratify by something else'
            )
    return found
