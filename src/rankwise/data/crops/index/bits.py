"""Which of very many things are chosen: one bit each, and the n-th chosen one in constant time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, IntArray

__all__ = ["BitTable"]

_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BitTable:
    """A row of bits with counts per block.

    Attributes:
        packed: uint8[n, 64], the bits, eight to a byte; those after the last one are 0.
        ends: int64[n], set bits up to and with each block.
    """

    packed: npt.NDArray[np.uint8]
    ends: IntArray

    @classmethod
    def of(cls, parts: Iterable[BoolArray]) -> Self:
        """Return the table of booleans that come in parts, one after the other."""
        packed: list[npt.NDArray[np.uint8]] = []
        left = np.zeros(0, dtype=np.bool_)
        for part in parts:
            row = np.concatenate([left, part])
            whole = len(row) // (8 * _BLOCK_BYTES) * (8 * _BLOCK_BYTES)
            packed.append(np.packbits(row[:whole]))
            left = row[whole:]
        if len(left):
            packed.append(np.packbits(np.pad(left, (0, 8 * _BLOCK_BYTES - len(left)))))
        table = np.concatenate([np.zeros(0, dtype=np.uint8), *packed]).reshape(-1, _BLOCK_BYTES)
        counts = np.bitwise_count(table) if hasattr(np, "bitwise_count") else np.unpackbits(table, axis=1)
        return cls(packed=table, ends=np.cumsum(counts.sum(axis=1, dtype=np.int64)))

    @property
    def num_set(self) -> int:
        """How many bits are set."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def select(self, numbers: IntArray) -> IntArray:
        """Return the place of the n-th set bit, int64[B], for numbers below `num_set`."""
        block = np.searchsorted(self.ends, numbers, side="right")
        before = np.where(block > 0, self.ends[block - 1], 0)
        rows = np.unpackbits(self.packed[block], axis=1)
        reached = np.cumsum(rows, axis=1, dtype=np.int64) > (numbers - before)[:, None]
        found: IntArray = block.astype(np.int64) * (8 * _BLOCK_BYTES) + reached.argmax(axis=1)
        return found
