"""`DrawOptions`: how rows are drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.rows.draws.weights import RowWeights
from rankwise.errors import ConfigError

__all__ = ["DrawOptions"]

_WINDOW_BYTES = 128 << 20  # limit for the decoded windows of all collections of a mix
_LEAST_LANES, _MOST_LANES = 4, 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawOptions:
    """How rows are drawn; the order stores this, and the loader draws the same.

    Attributes:
        num_samples: samples of an epoch.
        balance: an obs column whose values are equally likely; None = by weights, or each row once.
        weights: one number for each row.
        mix: share of each of several collections, in their order; None = no mix.
        together: draws that come from one block of rows.
        block_rows: rows of a block: average rows of a chunk in the matrices for which the order was made.
        lanes: for a mix, the number of runs of each collection that are read in parallel.
        window: for a mix, the number of blocks of a run that are mixed together.

    Raises:
        ConfigError: a number is out of range, or two ways of drawing are combined.
    """

    num_samples: int
    balance: str | None = None
    weights: Any = None
    mix: tuple[float, ...] | None = None
    together: int = 1
    block_rows: int = 1
    lanes: int = 1
    window: int = 1

    @property
    def chunk_samples(self) -> int:
        """Samples that come from one block of rows, for the order; 1 for a mix, which already has an order."""
        return self.together if self.mix is None else 1

    @property
    def order_kind(self) -> str | None:
        """The kind of order that suits: "sequential" for a mix of collections, which already has an order."""
        return None if self.mix is None else "sequential"

    @property
    def window_samples(self) -> int | None:
        """For a mix, the number of samples in the windows of all collections together."""
        return None if self.mix is None else len(self.mix) * self.lanes * self.window * self.block_rows

    def __post_init__(self) -> None:
        if self.balance is not None and self.weights is not None:
            raise ConfigError("balance= and weights= cannot be combined: give one")
        if self.balance is None and self.weights is None and self.mix is None:
            raise ConfigError("drawn rows need one of balance= and weights=, or mix= for several collections")
        for name in ("num_samples", "together", "block_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"draws need {name} of at least 1, got {getattr(self, name)}")
        if self.together > 1 and self.balance is None and self.weights is None:
            raise ConfigError(
                "together= is for balance= and weights=: a mix of whole collections reads each chunk about once anyway"
            )

    @classmethod
    def of(
        cls,
        *,
        num_rows: int,
        balance: str | None,
        weights: Any,
        mix: Any,
        num_samples: int | None,
        together: int,
        names: Sequence[str],
        block_rows: int,
        chunk_bytes: int,
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
        if weights is not None and balance is None:
            weights = RowWeights.checked(weights, num_rows)
        return cls(
            num_samples=num_samples, balance=balance, weights=weights, mix=shares, together=together,
            block_rows=block_rows, lanes=lanes, window=window,
        )  # fmt: skip


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
