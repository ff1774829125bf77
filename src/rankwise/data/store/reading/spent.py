"""Chunks of which a request leaves little."""

from __future__ import annotations

import math

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.plan import BoxPlan

__all__ = ["used_up"]

_MOST = 7 / 8


def used_up(plan: BoxPlan) -> BoolArray:
    """Return for each chunk of a plan, bool[K], whether its targets take seven eighths of its elements, or more.

    Not all: chunks of sparse rows that end where a row ends hold some elements of no row. Targets that follow each
    other and begin alike are one that is asked for several times, and count once. Where boxes overlap otherwise a chunk
    may seem to be used up that is not. One at the edge of its array hardly ever is.
    """
    targets, sizes = plan.targets, np.array([math.prod(meta.chunks) for meta in plan.request.arrays], dtype=np.int64)
    taken: IntArray = targets.extent.prod(axis=1)
    again = np.zeros(len(taken), dtype=np.bool_)
    again[1:] = (targets.src_start[1:] == targets.src_start[:-1]).all(axis=1)
    again[targets.bounds[:-1][targets.bounds[:-1] < len(taken)]] = False  # of another chunk
    taken[again] = 0
    ends = np.concatenate([[0], np.cumsum(taken)])
    whole: BoolArray = np.diff(ends[targets.bounds]) >= _MOST * sizes[plan.chunks.array]
    return whole
