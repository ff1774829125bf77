"""`Layout`: the arithmetic of all regions of some tasks at once, so that compiled code only walks over it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

import numpy as np

from rankwise.data.contract import BoolArray, IntArray

__all__ = ["LAYOUT_FIELDS", "Layout"]

# When this package was read from its files: what is in them may be other code later.
IMPORTED_S = time.time()

# The tables in the order in which the compiled loop finds their addresses.
LAYOUT_FIELDS = ("size", "low", "high", "src_first", "extents", "src_strides", "strides")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Where regions begin and how they step, over as few axes as possible.

    Axes that are contiguous in the chunk and in the output, for every target, are one axis; those of extent 1 are
    gone. A axes are left, at least one.

    Attributes:
        size: int64[K], bytes of each decoded chunk.
        low: int64[K], first byte of each chunk that any target takes.
        high: int64[K], end of the last byte that any target takes; `low` if there is no target.
        src_first: int64[T], byte of the chunk where each region begins.
        extents: int64[T, A], extents of each region.
        src_strides: int64[K, A], bytes from one element of a chunk to the next along each axis.
        strides: int64[A], elements from one to the next along each axis of the output; 1 for the last.
    """

    size: IntArray
    low: IntArray
    high: IntArray
    src_first: IntArray
    extents: IntArray
    src_strides: IntArray
    strides: IntArray

    @classmethod
    def of(
        cls,
        *,
        chunk_shape: IntArray,
        bounds: IntArray,
        src_start: IntArray,
        extent: IntArray,
        dst_strides: IntArray,
        itemsize: int,
    ) -> Self:
        """Return the layout of regions; for the tables see `ChunkTasks`."""
        # From the last axis to the first: how many elements lie between two neighbours
        sizes = np.cumprod(chunk_shape[:, ::-1], axis=1)
        strides = np.ones_like(chunk_shape)
        strides[:, :-1] = sizes[:, -2::-1]
        size = sizes[:, -1] * itemsize
        owner = np.repeat(np.arange(len(chunk_shape)), np.diff(bounds))
        of_targets = strides[owner]
        first = np.einsum("ij,ij->i", src_start, of_targets) * itemsize
        end = first + (np.einsum("ij,ij->i", extent - 1, of_targets) + 1) * itemsize
        low, high = _per_chunk(first, end, bounds)
        axes, extents = _merged(extent, of_targets, dst_strides)
        return cls(
            size=size,
            low=low,
            high=high,
            src_first=first,
            extents=extents,
            src_strides=np.ascontiguousarray(strides[:, axes] * itemsize),
            strides=np.ascontiguousarray(dst_strides[axes]),
        )


def _per_chunk(first: IntArray, end: IntArray, bounds: IntArray) -> tuple[IntArray, IntArray]:
    """Return the smallest `first` and the largest `end` of each chunk; 0 and 0 without targets."""
    low, high = np.zeros((2, len(bounds) - 1), dtype=np.int64)
    some = np.flatnonzero(np.diff(bounds))
    if len(some):
        low[some] = np.minimum.reduceat(first, bounds[some])
        high[some] = np.maximum.reduceat(end, bounds[some])
    return low, high


def _merged(extent: IntArray, strides: IntArray, dst_strides: IntArray) -> tuple[list[int], IntArray]:
    """Return which axes step where axes are merged, and the extents along these."""
    axes = [extent.shape[1] - 1]
    extents = [extent[:, -1]]
    for axis in range(extent.shape[1] - 2, -1, -1):
        if (extent[:, axis] == 1).all():
            continue
        inner, along = axes[0], extents[0]
        follows: BoolArray = strides[:, axis] == along * strides[:, inner]
        if (follows & (dst_strides[axis] == along * dst_strides[inner])).all():
            extents[0] = along * extent[:, axis]
        else:
            axes.insert(0, axis)
            extents.insert(0, extent[:, axis])
    return axes, np.ascontiguousarray(np.stack(extents, axis=1))
