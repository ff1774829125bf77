"""`Interleave`: mixes several collections by shares, position by position."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.errors import ConfigError

__all__ = ["MOST_POSITIONS", "Interleave"]

MOST_POSITIONS = (1 << 31) - (1 << 12)  # (end of its row) * (32-bit share) fits into 64 bits
_UNIT = 1 << 32


class Interleave:
    """Assigns positions to parts by shares in any unit, as a pure function of the position."""

    def __init__(self, shares: Sequence[float], lanes: int) -> None:
        if len(shares) < 2 or not all(math.isfinite(share) and share > 0 for share in shares):
            raise ConfigError(f"mix= needs a share above 0 for each of several collections, got {list(shares)}")
        self._shares = tuple(shares)
        self._lanes = lanes
        self._names = _far_apart(lanes, math.ceil(math.log2(len(shares))))

    def find(self, positions: IntArray, offset: int) -> tuple[IntArray, IntArray]:
        """Return the part of each position, and its number in that part, int64[n] twice.

        With two parts, complete rows of L positions use the numbers of each part without gaps; inside a row they come
        in any order. With more parts, each halving leaves at most L numbers for later. All positions of one lane get
        numbers of one lane, n mod L.

        Args:
            positions: int64[n], 0 to `MOST_POSITIONS` - 1.
            offset: in [0, 2**32); another offset gives other positions to the parts.
        """
        part, numbers = np.zeros(len(positions), dtype=np.int64), positions.copy()
        self._halve(part, numbers, np.arange(len(positions)), (0, len(self._shares)), offset)
        return part, numbers

    def _halve(
        self, part: IntArray, numbers: IntArray, where: IntArray, span: tuple[int, int], offset: int, *, level: int = 0
    ) -> None:
        """Assign the parts of a span: split it at the middle, then split each half."""
        first, last = span
        if last - first == 1:
            part[where] = first
            return
        middle = (first + last) // 2
        share = sum(self._shares[first:middle]) / sum(self._shares[first:last])
        comes, numbers[where] = self._taken(numbers[where], max(1, round(share * _UNIT)), offset, self._names[level])
        self._halve(part, numbers, where[comes], (first, middle), offset, level=level + 1)
        self._halve(part, numbers, where[~comes], (middle, last), offset, level=level + 1)

    def _taken(self, positions: IntArray, share: int, offset: int, names: IntArray) -> tuple[BoolArray, IntArray]:
        """Return which positions the first half takes, and the new numbers of all positions within their half."""
        row, lane = positions // self._lanes, names[positions % self._lanes]
        before, after = ((at * self._lanes * share + offset) >> 32 for at in (row, row + 1))
        mine = before + (lane - before) % self._lanes
        rest = row * self._lanes - before
        others = rest + (-1 - lane - rest) % self._lanes
        comes: BoolArray = mine < after
        return comes, np.where(comes, mine, others)


@functools.lru_cache(maxsize=64)
def _far_apart(lanes: int, levels: int) -> tuple[IntArray, ...]:
    """Return new names of the lanes for each level, in steps that spread any run of lanes evenly.

    Multiples of the golden ratio spread evenly, because its continued fraction has only ones. So a step is chosen whose
    fraction of all lanes has the smallest numbers, alone and combined with the steps of earlier levels.
    """
    steps = [step for step in range(1, lanes + 1) if math.gcd(step, lanes) == 1]
    chosen: list[int] = []
    for _ in range(levels):
        before = [math.prod(chosen[first:]) for first in range(len(chosen) + 1)]
        chosen.append(min(steps, key=functools.partial(_unevenness, before, lanes)))
    return tuple(np.arange(lanes, dtype=np.int64) * step % lanes for step in chosen)


def _unevenness(before: Sequence[int], lanes: int, step: int) -> list[int]:
    found = [number for one in before for number in _quotients(step * one % lanes, lanes)]
    return sorted(found, reverse=True)


def _quotients(over: int, under: int) -> list[int]:
    """Return the continued fraction of a ratio."""
    found = []
    while over:
        found.append(under // over)
        over, under = under % over, over
    return found
