"""How many blocks (chunks, shards) of a grid a window with a random origin touches: exact arithmetic for one axis.

Along an axis of n elements, cut into blocks of c, a window of w elements has N = n - w + 1 origins. It touches
``floor((s + w - 1) / c) - floor(s / c) + 1`` blocks; summed over all origins s this has a closed form, because
``sum(floor(j / c) for j < k) = c q (q - 1) / 2 + q r`` with ``q, r = divmod(k, c)``.

Axes are drawn independently, so expectations over a box are products over its axes.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from rankwise.data.contract import FloatArray

__all__ = ["expected_blocks", "expected_distinct", "expected_whole_blocks", "fewest_blocks", "touch_chances"]


def expected_blocks(size: int, block: int, window: int) -> Fraction:
    """Return the mean number of blocks that a window touches whose origin is uniform over all that fit.

    Args:
        size: elements of the axis.
        block: elements of a block.
        window: elements of the window; one that is longer than the axis touches every block.
    """
    if window >= size:
        return Fraction(-(-size // block))
    num_origins = size - window + 1
    last = _floors(size, block) - _floors(window - 1, block)
    return 1 + Fraction(last - _floors(num_origins, block), num_origins)


def fewest_blocks(size: int, block: int, window: int) -> int:
    """Return the fewest blocks that hold a window: those that it touches when its origin lies on the grid."""
    return -(-min(window, size) // block)


def expected_whole_blocks(size: int, block: int, window: int) -> Fraction:
    """Return `expected_blocks`, where a block at the end that reaches past the axis counts by its part inside."""
    rest = size % block
    window = min(window, size)
    num_origins = size - window + 1
    # the last block is touched by the origins that reach it; all of them end at size - window
    reaching = num_origins - max(size - rest - window + 1, 0)
    cut = Fraction(reaching, num_origins) * (1 - Fraction(rest, block)) if rest else Fraction(0)
    return expected_blocks(size, block, window) - cut


def touch_chances(size: int, block: int, window: int) -> tuple[FloatArray, FloatArray]:
    """Return the different chances of blocks to be touched, and how many blocks of the axis have each of them.

    Block i is touched by the origins from ``i block - window + 1`` to ``(i + 1) block - 1``, as far as they fit.
    """
    window = min(window, size)
    first = np.arange(-(-size // block), dtype=np.int64) * block
    low = np.maximum(first - window + 1, 0)
    high = np.minimum(first + block - 1, size - window)
    chances, counts = np.unique((high - low + 1) / (size - window + 1), return_counts=True)
    return chances, counts.astype(np.float64)


def expected_distinct(
    sizes: tuple[int, ...], blocks: tuple[int, ...], window: tuple[int, ...], *, draws: int, share: float = 1.0
) -> float:
    """Return how many different blocks of one array independent boxes touch together, on average.

    Args:
        sizes: shape of the array.
        blocks: shape of a block.
        window: extent of the boxes.
        draws: boxes that are drawn.
        share: chance that a box falls on this array, among others.
    """
    chances: FloatArray = np.ones(1)
    counts: FloatArray = np.ones(1)
    for size, block, extent in zip(sizes, blocks, window, strict=True):
        chance, count = touch_chances(size, block, extent)
        chances, inverse = np.unique(np.outer(chances, chance), return_inverse=True)
        counts = np.bincount(inverse.ravel(), weights=np.outer(counts, count).ravel()).astype(np.float64)
    return float(((1 - (1 - share * chances) ** draws) * counts).sum())


def _floors(stop: int, block: int) -> int:
    """Sum of ``j // block`` over all j below `stop`."""
    quotient, rest = divmod(stop, block)
    return block * quotient * (quotient - 1) // 2 + quotient * rest
