"""The stream of crops: a function of seed and batch number, the same for every reader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEED = 1234
_SLACK = (32, 128, 128)  # how far the origins of one neighbourhood lie apart, along the last axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Crops:
    """Where the boxes of one batch lie: array index int64[B], first elements int64[B, ndim]."""

    which: np.ndarray
    starts: np.ndarray


def crops_of(
    batch: int, *, size: int, num_arrays: int, shape: tuple[int, ...], crop: tuple[int, ...], where: str, chunk=()
) -> Crops:
    """Return batch number `batch`.

    Args:
        batch: number of the batch.
        size: crops in it.
        num_arrays: arrays to draw from.
        shape: shape of each array.
        crop: extent of a crop.
        where: "anywhere", "neighbourhood" (all crops of a batch within a small region) or "aligned" (origins on
            the grid of chunks).
        chunk: shape of a chunk, for "aligned".
    """
    rng = np.random.default_rng([SEED, batch])
    room = np.array(shape) - np.array(crop)
    which = rng.integers(0, num_arrays, size)
    starts = rng.integers(0, room + 1, (size, len(shape)))
    if where == "neighbourhood":
        slack = np.minimum(room, _SLACK[-len(shape) :])
        corner = rng.integers(0, room - slack + 1)
        which = np.full(size, which[0])
        starts = corner + rng.integers(0, slack + 1, (size, len(shape)))
    if where == "aligned":
        starts = starts // np.array(chunk) * np.array(chunk)
    return Crops(which=which.astype(np.int64), starts=starts.astype(np.int64))
