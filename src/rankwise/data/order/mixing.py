"""Words to keys: how (seed, epoch, stream, lane, window) becomes the key of a permutation.

The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
Keys are well spread, not secret.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["GOLDEN", "WORD", "WordArray", "derive", "mix_words"]

WordArray: TypeAlias = npt.NDArray[np.uint64]
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def derive(*words: int) -> int:
    """Return a 64-bit key of integers of any size and sign; the order of the words counts.

    Args:
        words: what the key depends on, for example seed, epoch and stream.
    """
    key = 0
    for word in words:
        limbs = max(1, -(-(word.bit_length() + 1) // 64))
        for limb in range(limbs):
            key = _mix(key ^ ((word >> (64 * limb)) & WORD))
        # The number of limbs ends a word, so that (2**64,) and (0, 1) differ.
        key = _mix(key ^ limbs)
    return key


def mix_words(words: WordArray) -> WordArray:
    """Return well-spread words, uint64 of the same shape: a bijection of each word."""
    mixed = words + np.uint64(GOLDEN)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mix(word: int) -> int:
    """Do as `mix_words`, for one Python integer."""
    word = (word + GOLDEN) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)
