"""Which row goes where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["cut_datasets", "order_rows"]


def cut_datasets(num_rows: int, dataset_rows: int) -> IntArray:
    """Return the edges of datasets of at most `dataset_rows` rows, as equal as can be: int64[datasets + 1]."""
    count = max(1, -(-num_rows // dataset_rows))
    edges: IntArray = np.arange(count + 1, dtype=np.int64) * num_rows // count
    return edges


def order_rows(
    edges: IntArray, *, seed: int, shuffle: bool, run: int, obs: Any = None, groupby: Sequence[str] = ()
) -> IntArray:
    """Return the input row of every row of the collection, int64[rows].

    With runs of one row it is a uniform permutation of all rows. Longer runs of neighbouring input rows stay together
    in one dataset, and are mixed inside it.

    Args:
        edges: of the datasets.
        seed: decides the permutation.
        shuffle: False keeps the order of the inputs.
        run: rows of a run.
        obs: table of the observations in the order of the inputs, for `groupby`.
        groupby: columns by which the rows of each dataset are sorted after the shuffle.
    """
    num_rows = int(edges[-1])
    order: IntArray = np.arange(num_rows, dtype=np.int64)
    if shuffle:
        rng = np.random.default_rng(seed)
        if run == 1:
            order = rng.permutation(num_rows)
        else:
            starts = rng.permutation(np.arange(0, num_rows, run))
            order = np.concatenate([np.arange(start, min(start + run, num_rows)) for start in starts.tolist()])
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                order[start:stop] = rng.permutation(order[start:stop])
    if groupby:
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            order[start:stop] = _grouped(order[start:stop], obs, groupby)
    return order


def _grouped(rows: IntArray, obs: Any, groupby: Sequence[str]) -> IntArray:
    missing = [column for column in groupby if column not in obs]
    if missing:
        raise ConfigError(f"groupby wants columns of obs; {missing} are none of {list(obs.columns)}")
    values = obs.iloc[rows][list(groupby)].reset_index(drop=True)
    by_group = values.sort_values(by=list(groupby), kind="stable").index.to_numpy()
    grouped: IntArray = rows[by_group]
    return grouped
