"""`RowDraws`: the rows that are drawn in an epoch, by weight, from one collection or from a mix of several."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray, sample_keys
from rankwise.data.contract.values import short_hash
from rankwise.data.order import place_of_samples
from rankwise.data.order.lanes import Grid, samples_at
from rankwise.data.rows.draws.weights import DrawOptions, RowWeights
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

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
        unevenness = [
            sorted((number for one in before for number in _quotients(step * one % lanes, lanes)), reverse=True)
            for step in steps
        ]
        chosen.append(steps[unevenness.index(min(unevenness))])
    return tuple(np.arange(lanes, dtype=np.int64) * step % lanes for step in chosen)


def _quotients(over: int, under: int) -> list[int]:
    """Return the continued fraction of a ratio."""
    found = []
    while over:
        found.append(under // over)
        over, under = under % over, over
    return found


_ENOUGH_ROWS = 100  # enough rows to distinguish measurements from classes
# Each use of a key has its own number, so that uses are independent.
_BLOCK, _ROW = 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class RowDraws:
    """Makes new draws in each epoch, without generator state to replay; the row of a draw is a pure function.

    With `together` k the samples k*g to k*g + k - 1 come from one block of neighbouring rows. A block is drawn by its
    total weight, and a row inside it by its own weight, so each row has the probability of its weight for any k.

    In a mix of collections sample i is at position i, so the order must not shuffle. Without weights each collection
    is read as an order of its own would read it, window by window, and starts again when all its rows were read.
    """

    options: DrawOptions
    weights: RowWeights | None  # how likely each row is; None = a mix of whole collections
    edges: IntArray  # int64[P + 1], first row of each collection, and the end

    def __post_init__(self) -> None:
        shares = self.options.mix
        if shares is None:
            return
        if len(shares) != len(self.edges) - 1:
            raise ConfigError(
                f"mix= needs one share for each of {len(self.edges) - 1} collections, got {list(shares)}: pass "
                "the collections as a list"
            )
        if (np.diff(self.edges) == 0).any():
            raise ConfigError("mix= needs rows of every collection, but one has none left")
        if self.options.num_samples > MOST_POSITIONS:
            raise ConfigError(f"an epoch of a mix has at most {MOST_POSITIONS} samples, got {self.options.num_samples}")
        if self.weights is not None and (np.diff(self.weights.before(self.edges)) <= 0).any():
            raise ConfigError("mix= needs rows of every collection, but all weights of one are zero")
        self._interleave  # noqa: B018  (raises for bad shares now)

    @classmethod
    def of(cls, options: DrawOptions, *, edges: IntArray, groups_of: Callable[[str], RowGroups]) -> RowDraws:
        """Return draws of some rows; `edges` int64[P + 1] are the first rows of the collections, and the end.

        Raises:
            ConfigError: weights or shares do not fit the rows, or no row has a value for `balance`.
        """
        weights, num_rows = None, int(edges[-1])
        if options.balance is not None:
            groups = groups_of(options.balance)
            if num_rows >= _ENOUGH_ROWS and len(groups.labels) > num_rows / 2:  # measurements rather than classes
                warnings.warn(
                    f"balance={options.balance!r}: the column has {len(groups.labels)} different values for {num_rows} "
                    "rows, so balancing by it changes little; use a column of classes",
                    stacklevel=5,
                )
            weights = RowWeights.balanced(groups, None if options.mix is None else edges)
        elif options.weights is not None:
            weights = RowWeights.checked(options.weights, num_rows)
        return cls(options=options, weights=weights, edges=edges)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all settings that decide the draws."""
        options, drawn = self.options, None
        if self.weights is not None:
            block_rows = options.block_rows if options.together > 1 else 0
            drawn = short_hash((options.num_samples, options.together, block_rows, self.weights.fingerprint))
        if options.mix is None:
            assert drawn is not None
            return drawn
        grid = (options.lanes, options.block_rows, options.window)
        return short_hash((options.num_samples, options.mix, self.edges.tolist(), grid, drawn))

    @cached_property
    def _interleave(self) -> Interleave:
        assert self.options.mix is not None
        return Interleave(self.options.mix, self.options.lanes)

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]."""
        options = self.options
        if options.mix is None:
            return self._drawn(ids, ids // options.together, seed, epoch, self.edges[[0, -1]])
        words = sample_keys(seed, epoch, -1 - np.arange(len(self.edges), dtype=np.int64)).tolist()
        parts, numbers = self._interleave.find(ids, words[-1] & 0xFFFFFFFF)
        rows = np.empty(len(ids), dtype=np.int64)
        for part in np.unique(parts).tolist():
            members = parts == part
            own, edges = numbers[members], self.edges[part : part + 2]
            if self.weights is None:
                rows[members] = edges[0] + self._passes(own, int(edges[1] - edges[0]), words[part])
            else:
                # neighbours in a lane share a block
                groups = own // options.lanes // options.together * options.lanes + own % options.lanes
                rows[members] = self._drawn(ids[members], groups * len(options.mix) + part, seed, epoch, edges)
        return rows

    def _passes(self, numbers: IntArray, num_rows: int, seed: int) -> IntArray:
        """Return rows of one collection, pass after pass over all its rows, each pass in another order."""
        options = self.options
        chunk = min(options.block_rows, num_rows)
        window = max(1, min(options.window, -(-num_rows // chunk)))
        grid = Grid(num_samples=num_rows, chunk_samples=chunk, lanes=min(options.lanes, num_rows), window=window)
        which, places = numbers // num_rows, numbers % num_rows
        rows = np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(which).tolist():
            rows[which == number] = samples_at(grid, seed, number, places[which == number])
        return rows

    def _drawn(self, ids: IntArray, groups: IntArray, seed: int, epoch: int, edges: IntArray) -> IntArray:
        """Return rows of samples between two edges, by weight; samples of one group share a block."""
        weights, block_rows = self.weights, self.options.block_rows
        assert weights is not None
        low, high = weights.before(edges)
        own = place_of_samples(sample_keys(seed, epoch, ids), _ROW)
        if self.options.together == 1:
            return _picked(weights, low, high, own)
        groups, member = np.unique(groups, return_inverse=True)
        of_group = place_of_samples(sample_keys(seed, epoch, groups), _BLOCK)
        drawn = _picked(weights, low, high, of_group) // block_rows
        starts = weights.before(np.clip(drawn * block_rows, *edges))
        ends = weights.before(np.clip((drawn + 1) * block_rows, *edges))
        return _picked(weights, starts[member], ends[member], own)


def _picked(weights: RowWeights, low: FloatArray, high: FloatArray, numbers: FloatArray) -> IntArray:
    """Return the rows at these fractions between two sums of weights."""
    return weights.pick(np.minimum(low + numbers * (high - low), np.nextafter(high, 0.0)))
