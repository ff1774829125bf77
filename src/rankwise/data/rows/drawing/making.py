"""From what a user asks for to draws."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.drawing.mixing import MixedDraws
from rankwise.data.rows.drawing.options import DrawOptions, Draws, RowDraws, RowWeights
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

__all__ = ["make_draws", "settled_options"]

_WINDOW_BYTES = 128 << 20  # what the windows of all collections of a mix may decode to
_ENOUGH_ROWS = 100  # to tell measurements from classes
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
    """Return options with nothing left open.

    Args:
        num_rows: how many rows there are.
        weights: as the user gave them.
        mix: a share for each collection, or ``{place: share}``.
        num_samples: draws of an epoch; None = as many as there are rows.
        names: places of the collections.
        block_rows: rows of a chunk, on average.
        chunk_bytes: what it decodes to.
        **asked: `balance` and `together`.

    Raises:
        ConfigError: they contradict each other, or do not fit the collections.
    """
    shares = None if mix is None else _shares(mix, names)
    num_samples = num_rows if num_samples is None else num_samples
    lanes = window = 1
    if shares is not None:
        budget = _WINDOW_BYTES // len(shares)
        lanes = int(min(np.clip(budget // chunk_bytes, _LEAST_LANES, _MOST_LANES), max(1, num_samples)))
        lanes = 1 << (lanes.bit_length() - 1)  # batches are most often a multiple of it, and hold their shares best so
        window = 1 if block_rows == 1 else max(1, budget // (lanes * chunk_bytes))
    if weights is not None and asked.get("balance") is None:
        weights = RowWeights.checked(weights, num_rows)
    return DrawOptions(
        num_samples=num_samples, weights=weights, mix=shares, block_rows=block_rows, lanes=lanes, window=window, **asked
    )


def make_draws(options: DrawOptions, *, num_rows: int, edges: IntArray, groups_of: Callable[[str], RowGroups]) -> Draws:
    """Return draws of some rows.

    Args:
        options: how.
        num_rows: how many rows there are.
        edges: int64[P + 1], where the rows of each collection begin, and the last ends.
        groups_of: tells the groups of the rows by a column.

    Raises:
        ConfigError: weights or shares do not fit the rows, or no row has a value to balance by.
    """
    weights = None
    if options.balance is not None:
        groups = groups_of(options.balance)
        _warn_of_many(len(groups.labels), num_rows, options.balance)
        weights = RowWeights.balanced(groups, None if options.mix is None else edges)
    elif options.weights is not None:
        weights = RowWeights.checked(options.weights, num_rows)
        if options.mix is not None and (np.diff(weights.before(edges)) <= 0).any():
            raise ConfigError("mix= wants rows of every collection: all weights of one of them are zero")
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
    """Say that a column of measurements was taken for one of classes."""
    if num_rows >= _ENOUGH_ROWS and num_groups > num_rows / 2:
        warnings.warn(
            f"balance={column!r}: the column has {num_groups} different values for {num_rows} rows, so that balancing "
            "by it changes little; it wants a column of classes",
            stacklevel=6,
        )


def _shares(mix: Any, names: Sequence[str]) -> tuple[float, ...]:
    if isinstance(mix, Mapping):
        given = {os.fspath(name): share for name, share in mix.items()}
        if sorted(given) != sorted(names):
            raise ConfigError(f"mix= wants a share of each of {list(names)}, got shares of {list(given)}")
        mix = [given[name] for name in names]
    try:
        shares = tuple(float(share) for share in mix)
    except (TypeError, ValueError):
        raise ConfigError(f"mix= wants one share for each of {list(names)}, got {mix!r}") from None
    if len(shares) != len(names) or len(shares) < 2:
        raise ConfigError(
            f"mix= wants a share for each of several collections; got {len(shares)} shares of {len(names)}: pass the "
            "collections as a list"
        )
    return shares
