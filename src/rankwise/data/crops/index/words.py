"""Random numbers without a generator: a few words per crop, computed from its key."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, sample_keys

__all__ = ["below", "evenly", "pick", "uniform"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53


def uniform(keys: IntArray, draw: int) -> FloatArray:
    """Return the `draw`-th number of each key, float64[B], uniform in [0, 1)."""
    return _unit(sample_keys(draw, 0, keys).view(np.uint64))


def below(keys: IntArray, draw: int, limits: IntArray) -> IntArray:
    """Return the `draw`-th number of each key as a whole number below its limit, int64[B]; all are equally likely."""
    drawn: IntArray = np.minimum((uniform(keys, draw) * limits).astype(np.int64), limits - 1)
    return drawn


def evenly(numbers: IntArray, offset: int) -> FloatArray:
    """Return numbers of [0, 1) that fill it evenly: any run of n whole numbers holds n * x below x, within a few.

    Multiples of the golden ratio, turned by an offset (Weyl's sequence).
    """
    turn = np.array([offset & (2**64 - 1)], dtype=np.uint64)
    return _unit(numbers.astype(np.uint64) * _GOLDEN + turn)


def pick(bounds: FloatArray, numbers: FloatArray) -> IntArray:
    """Return which interval of cumulative weights float64[N] each number of [0, 1) falls into, int64[B]."""
    found = np.searchsorted(bounds, numbers * bounds[-1], side="right")
    # rounding may reach the very end; intervals of weight zero are never met before it
    last = int(np.searchsorted(bounds, bounds[-1], side="left"))
    picked: IntArray = np.minimum(found, last).astype(np.int64)
    return picked


def _unit(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> FloatArray:
    units: FloatArray = (words >> np.uint64(11)).astype(np.float64) * _UNIT
    return units
