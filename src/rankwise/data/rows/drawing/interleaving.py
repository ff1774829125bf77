"""`Interleave`: which of several parts a position belongs to, so that any run of positions holds their shares.

Positions lie in rows of L lanes, as those of an order do. Of two parts the first, of share s, has had
``C(t) = floor(s * L * t)`` positions before row t. Its number c goes to the lane that the row calls c mod L, so the
numbers of row t, C(t) to C(t + 1) - 1, lie on an arc of the lanes, and the arcs of all rows follow each other. What is
left of a row is an arc too, and counted backwards these arcs follow each other just as well. So both parts are streams
of numbers in rows of L lanes again, and more parts are halves of halves. Lanes are renamed at each step, so that
neighbours are far apart: then a piece of a row holds its shares as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.errors import ConfigError

__all__ = ["MOST_POSITIONS", "Interleave"]

MOST_POSITIONS = (1 << 31) - (1 << 12)  # the end of its row times a share of 32 bits fits into 64
_UNIT = 1 << 32


class Interleave:
    """Parts by share, as a pure function of the position.

    Args:
        shares: one of each part, above 0, in any unit.
        lanes: lanes of the positions.

    Raises:
        ConfigError: a share is not above 0.
    """

    def __init__(self, shares: Sequence[float], lanes: int) -> None:
        if len(shares) < 2 or not all(math.isfinite(share) and share > 0 for share in shares):
            raise ConfigError(f"mix= wants a share above 0 of each of several collections, got {list(shares)}")
        self._shares = tuple(shares)
        self._lanes = lanes
        self._names = _far_apart(lanes, math.ceil(math.log2(len(shares))))

    def find(self, positions: IntArray, offset: int) -> tuple[IntArray, IntArray]:
        """Return the part of each position, and its number in that part, int64[n] twice.

        Whole rows of L positions bring the numbers of two parts without a gap; inside a row they come in any order. Of
        more parts at most L numbers for each halving are still to come. All positions of a lane have numbers of one
        lane, n mod L.

        Args:
            positions: int64[n], 0 to `MOST_POSITIONS` - 1.
            offset: in [0, 2**32); another one, other positions of the parts.
        """
        part, numbers = np.zeros(len(positions), dtype=np.int64), positions.copy()
        self._halve(part, numbers, np.arange(len(positions)), (0, len(self._shares)), offset)
        return part, numbers

    def _halve(
        self, part: IntArray, numbers: IntArray, where: IntArray, span: tuple[int, int], offset: int, *, level: int = 0
    ) -> None:
        """Tell the parts of a span from each other: those before and after its middle, then each half."""
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
        """Return which positions the first half takes, and the numbers that they and the others come to have."""
        row, lane = positions // self._lanes, names[positions % self._lanes]
        before, after = ((at * self._lanes * share + offset) >> 32 for at in (row, row + 1))
        mine = before + (lane - before) % self._lanes
        rest = row * self._lanes - before
        others = rest + (-1 - lane - rest) % self._lanes
        comes: BoolArray = mine < after
        return comes, np.where(comes, mine, others)


@functools.lru_cache(maxsize=64)
def _far_apart(lanes: int, levels: int) -> tuple[IntArray, ...]:
    """Other names of the lanes for each level, in steps that spread any run of them evenly.

    As multiples of the golden section do, whose continued fraction has only ones: a step is the one whose fraction of
    all lanes has the smallest numbers, alone and after the steps of the levels before it.
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
    """The continued fraction of a ratio."""
    found = []
    while over:
        found.append(under // over)
        over, under = under % over, over
    return found
