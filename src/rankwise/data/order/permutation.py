"""A keyed permutation of [0, size), computed on demand and never stored, and the derivation of its key."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.contract.cuts import GOLDEN, WordArray, mix_words

__all__ = ["GOLDEN", "MAX_SIZE", "WORD", "WordArray", "derive", "mix_words", "permute"]

WORD = (1 << 64) - 1


def derive(*words: int) -> int:
    """Return a 64-bit key from integers of any size and sign; their order matters.

    Args:
        words: the inputs of the key, for example seed, epoch and stream.
    """
    key = 0
    for word in words:
        limbs = max(1, -(-(word.bit_length() + 1) // 64))
        for limb in range(limbs):
            key = _mix(key ^ ((word >> (64 * limb)) & WORD))
        # Mix in the number of limbs of each word, so that (2**64,) and (0, 1) differ.
        key = _mix(key ^ limbs)
    return key


def _mix(word: int) -> int:
    """Like `mix_words`, for one Python integer."""
    word = (word + GOLDEN) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


Sizes: TypeAlias = IntArray | int
Keys: TypeAlias = WordArray | np.uint64

# Above it, a row and a 32-bit hash no longer fit into one word.
MAX_SIZE = 1 << 62
# Up to this size, elements are ranked by their hashes: every permutation is equally likely.
RANKED = 16
# (largest size, rounds): small sets need more rounds to mix, and rounds cost little there.
TIERS = ((RANKED, 0), (1 << 8, 10), (1 << 16, 6), (MAX_SIZE, 4))
# Each round has an odd factor for its key; rounds that differ only by an added constant would be shifts of each other.
ROUND_FACTORS = tuple(np.uint64(derive(number) | 1) for number in range(10))


def permute(elements: IntArray, size: Sizes, key: Keys, *, backward: bool = False) -> IntArray:
    """Return the image of each element, int64 of the broadcast shape.

    Args:
        elements: int64, each in [0, size).
        size: number of elements to permute, 1 to `MAX_SIZE`; a scalar, or broadcastable.
        key: uint64 key of the permutation; a scalar, or broadcastable.
        backward: whether to return the element that has each image: the inverse.
    """
    # NumPy warns when scalars wrap around, but not for arrays.
    sizes, keys = np.atleast_1d(np.asarray(size, dtype=np.int64)), np.atleast_1d(np.asarray(key, dtype=np.uint64))
    if not (elements.size and sizes.size):
        return np.zeros(np.broadcast_shapes(elements.shape, sizes.shape, keys.shape), dtype=np.int64)
    moved = _tiered(elements, sizes, keys, backward=backward)
    outside = moved >= sizes
    while outside.any():
        walking = moved[outside]
        own = np.broadcast_to(sizes, moved.shape)[outside]
        walking = _tiered(walking, own, np.broadcast_to(keys, moved.shape)[outside], backward=backward)
        moved[outside] = walking
        still = walking >= own
        outside[outside] = still
    return moved


def _tiered(elements: IntArray, sizes: IntArray, keys: WordArray, *, backward: bool) -> IntArray:
    """Run all elements through the network once, each with the number of rounds for its size."""
    smallest, largest = int(sizes.min()), int(sizes.max())
    above = 0
    for limit, rounds in TIERS:
        if above < smallest and largest <= limit:
            return _feistel(elements, sizes, keys, rounds, backward=backward)
        above = limit
    elements, sizes, keys = np.broadcast_arrays(elements, sizes, keys)
    moved = np.empty(elements.shape, dtype=np.int64)
    above = 0
    for limit, rounds in TIERS:
        pick = (sizes > above) & (sizes <= limit)
        if pick.any():
            moved[pick] = _feistel(elements[pick], sizes[pick], keys[pick], rounds, backward=backward)
        above = limit
    return moved


def _feistel(elements: IntArray, sizes: IntArray, keys: WordArray, rounds: int, *, backward: bool) -> IntArray:
    if rounds == 0:
        return _element_of_rank(elements, sizes, keys) if backward else _rank_of_element(elements, sizes, keys)
    # Square roots are correctly rounded everywhere, so the radices are the same on every machine.
    high_radix = np.sqrt((sizes - 1).astype(np.float64)).astype(np.int64) + 1
    low_radix = -(-sizes // high_radix)
    high_digit = elements // low_radix
    digits: list[WordArray] = [high_digit.astype(np.uint64), (elements - high_digit * low_radix).astype(np.uint64)]
    radices = [high_radix.astype(np.uint64), low_radix.astype(np.uint64)]
    order = range(rounds)
    for number in reversed(order) if backward else order:
        side = number % 2
        # a keyed hash of the other digit, scaled to [0, radix)
        shift = digits[1 - side] * np.uint64(GOLDEN)
        shift = shift ^ (keys * ROUND_FACTORS[number])  # the shapes may differ
        shift ^= shift >> np.uint64(32)
        shift *= np.uint64(0xD6E8FEB86659FD93)
        shift ^= shift >> np.uint64(29)
        shift *= np.uint64(0xBF58476D1CE4E5B9)
        shift >>= np.uint64(32)
        shift = shift * radices[side]
        shift >>= np.uint64(32)
        # add or subtract modulo the radix: what is beyond it wraps to a huge word, so the minimum is right
        moved = digits[side] - shift if backward else digits[side] + shift
        digits[side] = np.minimum(moved, moved + radices[side] if backward else moved - radices[side])
    image: IntArray = (digits[0] * radices[1] + digits[1]).astype(np.int64)
    return image


def _rank_of_element(elements: IntArray, sizes: IntArray, keys: WordArray) -> IntArray:
    """Return how many elements below `size` have a smaller hash."""
    own = _hashes(elements.astype(np.uint64), keys)
    rank = np.zeros(own.shape, dtype=np.int64)
    for other in np.arange(RANKED)[:, None]:
        rank += (_hashes(other.astype(np.uint64), keys) < own) & (other < sizes)
    return rank


def _element_of_rank(ranks: IntArray, sizes: IntArray, keys: WordArray) -> IntArray:
    """Return the element below `size` with the given rank."""
    ranks, sizes, keys = np.broadcast_arrays(ranks, sizes, keys)
    every = np.arange(RANKED)
    hashes = _hashes(every.astype(np.uint64), keys[..., None])
    hashes[every >= sizes[..., None]] = WORD
    found: IntArray = np.take_along_axis(np.argsort(hashes, axis=-1), ranks[..., None], axis=-1)[..., 0]
    return found


def _hashes(elements: WordArray, keys: WordArray) -> WordArray:
    return mix_words((elements + np.uint64(1)) * np.uint64(GOLDEN) ^ keys)
