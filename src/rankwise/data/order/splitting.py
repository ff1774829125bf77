"""Parts of data by a hash of what belongs together: data that are added later move nothing that was there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import FloatArray, IntArray, sample_keys
from rankwise.errors import ConfigError

__all__ = ["part_at", "place_of_group", "place_of_samples"]

_SUM_TOLERANCE = 1e-9


def part_at(places: FloatArray, fractions: Sequence[float]) -> IntArray:
    """Return the part in which each place lies, int64; len(fractions) = in none.

    Parts are stretches of [0, 1), one after the other, as long as their fractions.

    Args:
        places: float64, in [0, 1).
        fractions: how large the parts are, at most 1 together; what they leave is in no part.

    Raises:
        ConfigError: fractions are out of range.
    """
    if not fractions or not all(fraction > 0 for fraction in fractions) or sum(fractions) > 1 + _SUM_TOLERANCE:
        raise ConfigError(f"fractions are above 0 and at most 1 together, got {list(fractions)}")
    bounds = np.cumsum(fractions)
    if abs(bounds[-1] - 1) <= _SUM_TOLERANCE:
        bounds[-1] = 1.0  # rounding of the sum must not leave a gap at the end
    return np.searchsorted(bounds, places, side="right").astype(np.int64)


def place_of_group(group: str, seed: int) -> float:
    """Return where a group falls in [0, 1): a keyed hash of its name."""
    digest = hashlib.blake2b(f"{int(seed)}\n{group}".encode(), digest_size=8, person=b"rankwise-split").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def place_of_samples(samples: IntArray, seed: int) -> FloatArray:
    """Return where samples fall in [0, 1), float64, by a keyed hash of their numbers."""
    words = sample_keys(seed, 0, samples).view(np.uint64) >> np.uint64(11)
    places: FloatArray = words.astype(np.float64) * 2.0**-53
    return places
