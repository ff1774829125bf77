"""Names of observations: hashes of them, and what makes them unique."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.moving import Text

__all__ = ["find_repeats", "hash_names", "rename"]

_PARTS = 16  # hashes are looked at in so many portions


def hash_names(names: Text) -> NDArray:
    """Return a 64-bit hash of each name, uint64[n]."""
    import pandas as pd

    found: NDArray = pd.util.hash_array(names.objects(), categorize=False)
    return found


def find_repeats(hashes: NDArray) -> IntArray:
    """Return how many rows before each one have its name: int64[n], 0 for the first of a name.

    Args:
        hashes: uint64[n], of the names in the order of the inputs.
    """
    repeats = np.zeros(len(hashes), dtype=np.int64)
    part = (hashes >> np.uint64(60)).astype(np.int8)
    for number in range(_PARTS):
        rows = np.flatnonzero(part == number)
        order = np.argsort(hashes[rows], kind="stable")
        held = hashes[rows[order]]
        first = np.concatenate([[True], held[1:] != held[:-1]])
        starts = np.flatnonzero(first)
        repeats[rows[order]] = np.arange(len(held)) - np.repeat(starts, np.diff([*starts, len(held)]))
    return repeats


def rename(names: Text, repeats: IntArray) -> Text:
    """Put the number of a repetition behind the names that are one, as anndata does: "cell", "cell-1", "cell-2"."""
    rows = np.flatnonzero(repeats)
    if not len(rows):
        return names
    texts = names.objects()
    texts[rows] = [f"{texts[row]}-{repeats[row]}" for row in rows.tolist()]
    return Text.of(texts)
