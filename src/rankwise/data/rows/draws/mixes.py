"""Makes draws from user options, over one collection or a mix of several; each batch has the share of each."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, sample_keys
from rankwise.data.order.lanes import Grid, samples_at
from rankwise.data.rows.draws.weights import DrawOptions, RowDraws, RowWeights
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

__all__ = ["MOST_POSITIONS", "Draws", "Interleave", "MixedDraws", "make_draws", "settled_options"]

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedDraws:
    """Mixes collections by share, as `RowDraws` draws rows; sample i is at position i, so the order must not shuffle.

    Without weights each collection is read as an order of its own would read it, window by window, and starts again
    when all its rows were read. With weights its rows are drawn.
    """

    num_samples: int  # samples of an epoch
    shares: tuple[float, ...]  # share of each collection
    edges: IntArray  # int64[P + 1], first row of each collection, and the end
    lanes: int  # runs of each collection that are read in parallel
    block_rows: int  # rows of a chunk
    window: int  # chunks of a run that are mixed together
    draws: RowDraws | None = None  # how rows are drawn; None = each row once

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.edges) - 1:
            raise ConfigError(
                f"mix= needs one share for each of {len(self.edges) - 1} collections, got {list(self.shares)}: pass "
                "the collections as a list"
            )
        if (np.diff(self.edges) == 0).any():
            raise ConfigError("mix= needs rows of every collection, but one has none left")
        Interleave(self.shares, self.lanes)  # raises for bad shares now
        if self.num_samples > MOST_POSITIONS:
            raise ConfigError(f"an epoch of a mix has at most {MOST_POSITIONS} samples, got {self.num_samples}")

    @property
    def together(self) -> int:
        """Unused: the samples already have an order."""
        return 1

    @property
    def fingerprint(self) -> str:
        """Hash of all settings that decide the samples."""
        grid = (self.lanes, self.block_rows, self.window)
        drawn = None if self.draws is None else self.draws.fingerprint
        facts = (self.num_samples, self.shares, self.edges.tolist(), grid, drawn)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def rows(self, ids: IntArray, *, seed: int, epoch: int) -> IntArray:
        """Return the rows of samples of an epoch, int64[B]."""
        words = sample_keys(seed, epoch, -1 - np.arange(len(self.edges), dtype=np.int64)).tolist()
        parts, numbers = Interleave(self.shares, self.lanes).find(ids, words[-1] & 0xFFFFFFFF)
        rows = np.empty(len(ids), dtype=np.int64)
        for part in np.unique(parts).tolist():
            members = parts == part
            first, last = int(self.edges[part]), int(self.edges[part + 1])
            if self.draws is not None:
                own, groups = ids[members], self._groups(numbers[members]) * len(self.shares) + part
                rows[members] = self.draws.rows_of(own, groups, seed=seed, epoch=epoch, first=first, last=last)
            else:
                rows[members] = first + self._passes(numbers[members], last - first, words[part])
        return rows

    def _groups(self, numbers: IntArray) -> IntArray:
        """Return a block number for each sample of a part: neighbours in its lane share a block."""
        assert self.draws is not None
        return numbers // self.lanes // self.draws.together * self.lanes + numbers % self.lanes

    def _passes(self, numbers: IntArray, num_rows: int, seed: int) -> IntArray:
        """Return rows of one collection, pass after pass over all its rows, each pass in another order."""
        chunk = min(self.block_rows, num_rows)
        window = max(1, min(self.window, -(-num_rows // chunk)))
        grid = Grid(num_samples=num_rows, chunk_samples=chunk, lanes=min(self.lanes, num_rows), window=window)
        which, places = numbers // num_rows, numbers % num_rows
        rows = np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(which).tolist():
            rows[which == number] = samples_at(grid, seed, number, places[which == number])
        return rows


Draws: TypeAlias = RowDraws | MixedDraws

_WINDOW_BYTES = 128 << 20  # limit for the decoded windows of all collections of a mix
_ENOUGH_ROWS = 100  # enough rows to distinguish measurements from classes
_LEAST_LANES, _MOST_LANES = 4, 64


def settled_options(
    *,
    num_rows: int,
    weights: Any,
    mix: Any,
    num_samples: int | None,
    names: Sequence[str],
    block_rows: int,
    chunk_bytes: int,
    **asked: Any,
) -> DrawOptions:
    """Return complete options, with defaults filled in; `weights` and `mix` are as the user passed them.

    Raises:
        ConfigError: the options contradict each other, or do not fit the collections.
    """
    shares = None if mix is None else _shares(mix, names)
    num_samples = num_rows if num_samples is None else num_samples
    lanes = window = 1
    if shares is not None:
        budget = _WINDOW_BYTES // len(shares)
        lanes = int(min(np.clip(budget // chunk_bytes, _LEAST_LANES, _MOST_LANES), max(1, num_samples)))
        lanes = 1 << (lanes.bit_length() - 1)  # batch sizes are mostly a multiple of it, and then have exact shares
        window = 1 if block_rows == 1 else max(1, budget // (lanes * chunk_bytes))
    if weights is not None and asked.get("balance") is None:
        weights = RowWeights.checked(weights, num_rows)
    return DrawOptions(
        num_samples=num_samples, weights=weights, mix=shares, block_rows=block_rows, lanes=lanes, window=window, **asked
    )


def make_draws(options: DrawOptions, *, num_rows: int, edges: IntArray, groups_of: Callable[[str], RowGroups]) -> Draws:
    """Return draws of some rows; `edges` int64[P + 1] are the first rows of the collections, and the end.

    Raises:
        ConfigError: weights or shares do not fit the rows, or no row has a value for `balance`.
    """
    weights = None
    if options.balance is not None:
        groups = groups_of(options.balance)
        _warn_of_many(len(groups.labels), num_rows, options.balance)
        weights = RowWeights.balanced(groups, None if options.mix is None else edges)
    elif options.weights is not None:
        weights = RowWeights.checked(options.weights, num_rows)
        if options.mix is not None and (np.diff(weights.before(edges)) <= 0).any():
            raise ConfigError("mix= needs rows of every collection, but all weights of one are zero")
    drawn = None
    if weights is not None:
        drawn = RowDraws(
            num_samples=options.num_samples,
            weights=weights,
            together=options.together,
            block_rows=options.block_rows,
        )
    if options.mix is None:
        assert drawn is not None
        return drawn
    return MixedDraws(
        num_samples=options.num_samples, shares=options.mix, edges=edges, lanes=options.lanes,
        block_rows=options.block_rows, window=options.window, draws=drawn,
    )  # fmt: skip


def _warn_of_many(num_groups: int, num_rows: int, column: str) -> None:
    """Warn that a column looks like measurements rather than classes."""
    if num_rows >= _ENOUGH_ROWS and num_groups > num_rows / 2:
        warnings.warn(
            f"balance={column!r}: the column has {num_groups} different values for {num_rows} rows, so balancing "
            "by it changes little; use a column of classes",
            stacklevel=6,
        )


def _shares(mix: Any, names: Sequence[str]) -> tuple[float, ...]:
    if isinstance(mix, Mapping):
        given = {os.fspath(name): share for name, share in mix.items()}
        if sorted(given) != sorted(names):
            raise ConfigError(f"mix= needs a share for each of {list(names)}, got shares for {list(given)}")
        mix = [given[name] for name in names]
    try:
        shares = tuple(float(share) for share in mix)
    except (TypeError, ValueError):
        raise ConfigError(f"mix= needs one share for each of {list(names)}, got {mix!r}") from None
    if len(shares) != len(names) or len(shares) < 2:
        raise ConfigError(
            f"mix= needs a share for each of several collections; got {len(shares)} shares of {len(names)}: pass the "
            "collections as a list"
        )
    return shares
