"""Places of rows in a collection, and unique row names."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.order.permutation import derive, permute

_RUNS, _INSIDE = 1, 2  # random streams of the seed


def cut_datasets(num_rows: int, dataset_rows: int) -> IntArray:
    """Return the edges of datasets with at most `dataset_rows` rows, of nearly equal size: int64[datasets + 1]."""
    count = max(1, -(-num_rows // dataset_rows))
    edges: IntArray = np.arange(count + 1, dtype=np.int64) * num_rows // count
    return edges


class Placing:
    """The place in the collection of every input row.

    With runs of one row it is a keyed permutation of all rows, computed on demand. Longer runs of neighbouring
    input rows stay together in one dataset as far as its edges allow, and are mixed inside it.

    Args:
        edges: int64[datasets + 1], of the datasets.
        seed: decides the permutation.
        shuffle: False keeps the order of the inputs.
        run: rows of a run.
        groups: int[rows], group rank of each input row: after the shuffle, rows of each dataset are sorted by it; this
            keeps their order in memory.
    """

    def __init__(
        self, edges: IntArray, *, seed: int, shuffle: bool = True, run: int = 1, groups: IntArray | None = None
    ) -> None:
        self._edges, self._num_rows, self._shuffle, self._run = edges, int(edges[-1]), shuffle, run
        self._key, self._seed = np.uint64(derive(seed, _RUNS)), seed
        self._sorted: IntArray | None = None
        if groups is not None:  # rows of a group keep their random order
            places = self._shuffled(np.arange(self._num_rows, dtype=np.int64))
            rows = np.empty_like(places)
            rows[places] = np.arange(self._num_rows, dtype=np.int64)
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                members = rows[start:stop]
                places[members[np.argsort(groups[members], kind="stable")]] = np.arange(start, stop)
            self._sorted = places

    def places(self, rows: IntArray) -> IntArray:
        """Return the places of input rows, int64 of their shape."""
        return self._shuffled(rows) if self._sorted is None else self._sorted[rows]

    def _shuffled(self, rows: IntArray) -> IntArray:
        if not self._shuffle:
            return rows
        if self._run == 1:
            return permute(rows, self._num_rows, self._key)
        # permute the runs; runs behind the last one, which may be short, move up
        num_runs = -(-self._num_rows // self._run)
        number = permute(rows // self._run, num_runs, self._key)
        short = permute(np.array([num_runs - 1]), num_runs, self._key)
        gap = num_runs * self._run - self._num_rows
        places: IntArray = number * self._run - np.where(number > short, gap, 0) + rows % self._run
        # mix the rows inside each dataset
        dataset = np.searchsorted(self._edges, places, side="right") - 1
        keys = np.array([derive(self._seed, _INSIDE, number) for number in range(len(self._edges) - 1)], np.uint64)
        start = self._edges[dataset]
        return start + permute(places - start, self._edges[dataset + 1] - start, keys[dataset])


_PARTS = 16  # number of parts in which hashes are compared


def hash_names(names: NDArray) -> NDArray:
    """Return a 64-bit hash of each name, uint64[n]; names are texts, see `as_texts`."""
    import pandas as pd

    found: NDArray = pd.util.hash_array(names, categorize=False)
    return found


def find_repeats(hashes: NDArray) -> IntArray:
    """Return how many earlier rows have the same hash, uint64[n]: int64[n], 0 for the first."""
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


def rename(names: NDArray, repeats: IntArray) -> NDArray:
    """Append the repetition number to names, as anndata does: "cell", "cell-1", "cell-2"."""
    rows = np.flatnonzero(repeats)
    renamed = names.copy()
    renamed[rows] = [f"{names[row]}-{repeats[row]}" for row in rows.tolist()]
    return renamed
