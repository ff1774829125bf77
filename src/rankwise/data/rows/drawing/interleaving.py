"""`Interleave`: which of several parts a position belongs to, so that any run of positions holds their shares.

Positions lie in rows of L lanes, as those of an order do. Of two parts the first, of share s, has had
``C(t) = floor(s * L * t)`` positions before row t. Its number c goes to the lane that the row calls c mod L, so the
numbers of row t, C(t) to C(t + 1) - 1, lie on an arc of the lanes, and the arcs of all rows follow each other. What is
left of a row is an arc too, and counted backwards these arcs follow each other just as well. So both parts are streams
of numbers in rows of L lanes again, and more parts are halves of halves. Lanes are renamed at each step, so that
neighbours are far apart: then a piece of a row holds its shares as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.errors import ConfigError

__all__ = ["MOST_POSITIONS", "Interleave"]

MOST_POSITIONS = 1 << 31  # a position times a share of 32 bits fits into 64
_UNIT = 1 << 32
_GOLDEN = 0.6180339887498949


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
        self._names = _far_apart(lanes)

    def find(self, positions: IntArray, offset: int) -> tuple[IntArray, IntArray]:
        """Return the part of each position, and its number in that part, int64[n] twice.

        Rows of L positions bring the numbers of each part without a gap; inside a row they come in any order. All
        positions of a lane have numbers of one lane, n mod L.

        Args:
            positions: int64[n], 0 to `MOST_POSITIONS` - 1.
            offset: in [0, 2**32); another one, other positions of the parts.
        """
        part, numbers = np.zeros(len(positions), dtype=np.int64), positions.copy()
        self._halve(part, numbers, np.arange(len(positions)), (0, len(self._shares)), offset)
        return part, numbers

    def _halve(self, part: IntArray, numbers: IntArray, where: IntArray, span: tuple[int, int], offset: int) -> None:
        """Tell the parts of a span from each other: those before and after its middle, then each half."""
        first, last = span
        if last - first == 1:
            part[where] = first
            return
        middle = (first + last) // 2
        share = sum(self._shares[first:middle]) / sum(self._shares[first:last])
        comes, numbers[where] = self._taken(numbers[where], max(1, round(share * _UNIT)), offset)
        self._halve(part, numbers, where[comes], (first, middle), offset)
        self._halve(part, numbers, where[~comes], (middle, last), offset)

    def _taken(self, positions: IntArray, share: int, offset: int) -> tuple[BoolArray, IntArray]:
        """Return which positions the first half takes, and the numbers that they and the others come to have."""
        row, lane = positions // self._lanes, self._names[positions % self._lanes]
        before, after = ((at * self._lanes * share + offset) >> 32 for at in (row, row + 1))
        mine = before + (lane - before) % self._lanes
        rest = row * self._lanes - before
        others = rest + (-1 - lane - rest) % self._lanes
        comes: BoolArray = mine < after
        return comes, np.where(comes, mine, others)


def _far_apart(lanes: int) -> IntArray:
    """Other names of the lanes: neighbours are about 0.6 of all lanes apart."""
    step = next(step for step in range(max(1, round(lanes * _GOLDEN)), lanes + 1) if math.gcd(step, lanes) == 1)
    names: IntArray = np.arange(lanes, dtype=np.int64) * step % lanes
    return names
