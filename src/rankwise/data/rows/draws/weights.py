"""`DrawOptions`: how rows are drawn; and `RowWeights`: how likely each row is, in little memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, Locality, NDArray, whole_number
from rankwise.data.order.layout import WINDOW_BYTES
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError

_BLOCK_ROWS = 128  # a draw adds this many weights; the stored sums take 1/16 byte per row
_PIECE = 1 << 12  # draws at a time; their sums take 4 MiB
_PIECE_BLOCKS = 1 << 13


class RowWeights:
    """Weights of rows; only sums over blocks of rows are stored as floats.

    A draw is a place on a line as long as the total weight; each row owns an interval as long as its weight. Sums
    inside a block are computed for each draw, in a fixed sequence, so that they are the same on every machine.

    Args:
        values: for each row its weight, float32; or an index into `table`, where negative ones count from the end.
        table: float64 weights to which `values` point.
    """

    def __init__(self, values: NDArray, table: FloatArray | None = None) -> None:
        self.values = values
        self._table = table
        num_blocks = -(-len(values) // _BLOCK_ROWS)
        sums = np.empty(num_blocks)
        for low in range(0, num_blocks, _PIECE_BLOCKS):
            blocks = np.arange(low, min(low + _PIECE_BLOCKS, num_blocks))
            sums[blocks] = self._added(blocks)[:, -1]
        self._ends: FloatArray = np.cumsum(sums)

    @classmethod
    def balanced(cls, groups: RowGroups, parts: IntArray | None = None) -> RowWeights:
        """Return weights that make every group with rows equally likely; rows without a group get weight 0.

        With `parts`, int64[P + 1], edges of parts of the rows, groups are balanced inside each part.
        """
        edges = [0, len(groups.codes)] if parts is None else parts.tolist()
        num_groups, num_parts = len(groups.labels), len(edges) - 1
        codes = groups.codes
        if num_parts > 1:
            codes = codes.astype(np.min_scalar_type(-max(1, num_groups * num_parts)))
            for part in range(1, num_parts):
                inside = codes[edges[part] : edges[part + 1]]
                inside[inside >= 0] += part * num_groups
        counts = np.zeros(num_groups * num_parts + 1, dtype=np.int64)
        for low in range(0, len(codes), 1 << 20):  # in pieces, as NumPy counts wide integers only
            counts += np.bincount(codes[low : low + (1 << 20)].astype(np.int64) + 1, minlength=len(counts))
        counts = counts[1:]
        if not counts.reshape(num_parts, num_groups).any(axis=1).all():
            raise ConfigError("no row has a value in the column to balance by: choose another column")
        each = np.zeros(len(counts) + 1)
        each[:-1][counts > 0] = 1.0 / counts[counts > 0]
        return cls(codes, each)  # the last entry, 0, is for code -1

    @classmethod
    def checked(cls, weights: Any, num_rows: int) -> RowWeights:
        """Return user weights, kept as float32: 7 digits, and nothing below 1e-38 of the largest.

        Raises:
            ConfigError: they have another length, or are negative, not finite, or all zero.
        """
        if isinstance(weights, RowWeights) and len(weights) == num_rows:
            return weights
        found = np.asarray(weights)
        if found.dtype.kind not in "biuf" or found.shape != (num_rows,):
            raise ConfigError(
                f"weights= needs one number for each of {num_rows} rows, got {found.dtype}{list(found.shape)}"
            )
        if not np.isfinite(found).all() or (found < 0).any() or not found.any():
            raise ConfigError("weights= needs finite numbers of at least 0, at least one above 0")
        if found.dtype == np.float32:
            return cls(found.copy())
        return cls((found / found.max()).astype(np.float32))

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights."""
        digest = hashlib.sha256(np.ascontiguousarray(self.values).view(np.uint8).data)
        digest.update(b"" if self._table is None else self._table.tobytes())
        return digest.hexdigest()[:16]

    def before(self, rows: IntArray) -> FloatArray:
        """Return the total weight of all rows before each of these, float64[n]; rows are in [0, number of rows]."""
        last = np.maximum(rows - 1, 0)
        found = np.empty(len(rows))
        for low in range(0, len(rows), _PIECE):
            part = last[low : low + _PIECE]
            found[low : low + _PIECE] = self._absolute(part // _BLOCK_ROWS)[np.arange(len(part)), part % _BLOCK_ROWS]
        return np.where(rows > 0, found, 0.0)

    def pick(self, places: FloatArray) -> IntArray:
        """Return the rows, int64[n], that own these places, float64[n] in [0, total); never rows of weight 0."""
        found = np.empty(len(places), dtype=np.int64)
        last_block = int(np.searchsorted(self._ends, self._ends[-1], side="left"))  # rounding may reach the very end
        for low in range(0, len(places), _PIECE):
            wanted = places[low : low + _PIECE]
            blocks = np.minimum(np.searchsorted(self._ends, wanted, side="right"), last_block)
            ends = self._absolute(blocks)
            inside = np.minimum(
                np.count_nonzero(ends <= wanted[:, None], axis=1), np.count_nonzero(ends < ends[:, -1:], axis=1)
            )
            found[low : low + _PIECE] = blocks * _BLOCK_ROWS + inside
        return found

    def _absolute(self, blocks: IntArray) -> FloatArray:
        """Return the weight up to and including each row of blocks, float64[n, 128]."""
        before = np.where(blocks > 0, self._ends[blocks - 1], 0.0)
        return before[:, None] + self._added(blocks)

    def _added(self, blocks: IntArray) -> FloatArray:
        rows = blocks[:, None] * _BLOCK_ROWS + np.arange(_BLOCK_ROWS)
        values = self.values[np.minimum(rows, len(self.values) - 1)]
        weights = values.astype(np.float64) if self._table is None else self._table[values]
        weights[rows >= len(self.values)] = 0.0
        return np.cumsum(weights, axis=1)


LEAST_LANES, MOST_LANES = 4, 64


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

    def __post_init__(self) -> None:
        if self.balance is not None and self.weights is not None:
            raise ConfigError("balance= and weights= cannot be combined: give one")
        if self.balance is None and self.weights is None and self.mix is None:
            raise ConfigError("drawn rows need one of balance= and weights=, or mix= for several collections")
        for name in ("num_samples", "together", "block_rows"):
            whole_number(f"{name} of drawn rows", getattr(self, name), least=1)
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
        locality: Locality,
    ) -> DrawOptions:
        """Return complete options, with defaults filled in; `weights` and `mix` are as the user passed them.

        Raises:
            ConfigError: the options contradict each other, or do not fit the collections.
        """
        shares = None if mix is None else _shares(mix, names)
        num_samples = num_rows if num_samples is None else num_samples
        lanes = window = 1
        block_rows, chunk_bytes = locality.chunk_samples, locality.chunk_bytes or 1
        if shares is not None:
            budget = WINDOW_BYTES // len(shares)
            lanes = int(min(np.clip(budget // chunk_bytes, LEAST_LANES, MOST_LANES), max(1, num_samples)))
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
