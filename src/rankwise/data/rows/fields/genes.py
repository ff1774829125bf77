"""From what a user calls genes to columns."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["chosen_genes"]

_SHOWN = 5
_NO_MASK = "genes= is a list of names or numbers (of a mask take numpy.flatnonzero(mask))"


def chosen_genes(genes: Sequence[Any], num_vars: int, names: Callable[[], Sequence[str]]) -> IntArray:
    """Return columns, int64[n], in the order in which they were asked for.

    Args:
        genes: names or numbers of variables.
        num_vars: how many there are.
        names: tells their names; asked only where names were given.

    Raises:
        ConfigError: none or one twice was asked for, or one that there is not.
    """
    if isinstance(genes, str):
        raise ConfigError(f"genes= is a list of names or numbers, got the text {genes!r}: write genes=[{genes!r}]")
    wanted = list(genes)
    if any(isinstance(gene, str) for gene in wanted):
        wanted = _numbers(wanted, names())
    if any(isinstance(gene, bool) for gene in wanted):
        raise ConfigError(_NO_MASK)
    try:
        columns: IntArray = np.array([operator.index(gene) for gene in wanted], dtype=np.int64)
    except TypeError:
        raise ConfigError(_NO_MASK) from None
    outside = [column for column in columns.tolist() if not 0 <= column < num_vars]
    if outside or len(columns) == 0:
        raise ConfigError(f"genes= wants some of the numbers 0 to {num_vars - 1}; got {outside or 'none at all'}")
    twice = [column for column, count in Counter(columns.tolist()).items() if count > 1]
    if twice:
        raise ConfigError(f"genes= has {len(twice)} variables several times, the first is number {twice[0]}")
    return columns


def _numbers(wanted: Sequence[Any], names: Sequence[str]) -> list[Any]:
    place = {name: number for number, name in enumerate(names)}
    unknown = [gene for gene in wanted if isinstance(gene, str) and gene not in place]
    if unknown:
        raise ConfigError(
            f"genes= has {len(unknown)} names that are not there, such as {unknown[:_SHOWN]}; there are "
            f"{len(names)}, such as {list(names[:_SHOWN])}"
        )
    if len(place) < len(names):
        several = {name for name, count in Counter(names).items() if count > 1} & set(map(str, wanted))
        if several:
            raise ConfigError(f"several variables are named {min(several)!r}: give numbers")
    return [place[gene] if isinstance(gene, str) else gene for gene in wanted]
