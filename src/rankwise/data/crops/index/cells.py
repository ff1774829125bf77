"""Cells of masks and label images: bits and words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, FloatArray, IntArray, sample_keys

__all__ = ["BitTable", "CellGrid", "CellTable", "below", "evenly", "pick", "uniform"]

_BLOCK_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BitTable:
    """A row of bits with counts per block.

    Attributes:
        packed: uint8[n, 64], the bits, eight to a byte; those after the last one are 0.
        ends: int64[n], set bits up to and with each block.
    """

    packed: npt.NDArray[np.uint8]
    ends: IntArray

    @classmethod
    def of(cls, parts: Iterable[BoolArray]) -> Self:
        """Return the table of booleans that come in parts, one after the other."""
        packed: list[npt.NDArray[np.uint8]] = []
        left = np.zeros(0, dtype=np.bool_)
        for part in parts:
            row = np.concatenate([left, part])
            whole = len(row) // (8 * _BLOCK_BYTES) * (8 * _BLOCK_BYTES)
            packed.append(np.packbits(row[:whole]))
            left = row[whole:]
        if len(left):
            packed.append(np.packbits(np.pad(left, (0, 8 * _BLOCK_BYTES - len(left)))))
        table = np.concatenate([np.zeros(0, dtype=np.uint8), *packed]).reshape(-1, _BLOCK_BYTES)
        counts = np.bitwise_count(table) if hasattr(np, "bitwise_count") else np.unpackbits(table, axis=1)
        return cls(packed=table, ends=np.cumsum(counts.sum(axis=1, dtype=np.int64)))

    @property
    def num_set(self) -> int:
        """How many bits are set."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def select(self, numbers: IntArray) -> IntArray:
        """Return the place of the n-th set bit, int64[B], for numbers below `num_set`."""
        block = np.searchsorted(self.ends, numbers, side="right")
        before = np.where(block > 0, self.ends[block - 1], 0)
        rows = np.unpackbits(self.packed[block], axis=1)
        reached = np.cumsum(rows, axis=1, dtype=np.int64) > (numbers - before)[:, None]
        found: IntArray = block.astype(np.int64) * (8 * _BLOCK_BYTES) + reached.argmax(axis=1)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellGrid:
    """The cells of one image.

    Attributes:
        chosen: bool, one element per cell, of D axes (1 along axes that the map has not).
        size: float64[D], elements of the reference per cell.
        corner: float64[D], where the first cell begins, in elements of the reference.
    """

    chosen: BoolArray
    size: FloatArray
    corner: FloatArray

    def at(self, points: FloatArray) -> BoolArray:
        """Return whether points float64[B, D] of the reference lie in chosen cells; outside the map they do not."""
        cells = np.floor((points - self.corner) / self.size).astype(np.int64)
        inside = ((cells >= 0) & (cells < self.chosen.shape)).all(axis=1)
        cells = np.clip(cells, 0, np.array(self.chosen.shape) - 1)
        return np.asarray(inside & self.chosen[tuple(cells.T)], dtype=np.bool_)

    def fraction_in(self, starts: IntArray, extent: IntArray) -> FloatArray:
        """Return which share of each box, int64[B, D] and its extent, is chosen, counted in cells: float64[B]."""
        summed = np.pad(self.chosen.astype(np.int64), [(1, 0)] * self.chosen.ndim)
        for axis in range(summed.ndim):
            summed = np.cumsum(summed, axis=axis)
        shape = np.array(self.chosen.shape)
        low = np.clip(np.floor((starts - self.corner) / self.size + 1e-9).astype(np.int64), 0, shape)
        high = np.clip(np.ceil((starts + extent - self.corner) / self.size - 1e-9).astype(np.int64), 0, shape)
        held = np.zeros(len(starts), dtype=np.int64)
        for corner in np.ndindex((2,) * summed.ndim):
            ends = np.where(np.array(corner) == 1, high, low)
            held += (-1) ** (summed.ndim - sum(corner)) * summed[tuple(ends.T)]
        shares: FloatArray = held / np.maximum(np.prod(high - low, axis=1), 1)
        return shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellTable:
    """The chosen cells of all images, and how to draw one.

    Attributes:
        bits: all cells, image after image.
        shapes: int64[N, D], cells along each axis.
        firsts: int64[N], number of the first cell of each image.
        before: int64[N + 1], chosen cells before each image.
        sizes: float64[N, D], see `CellGrid`.
        corners: float64[N, D].
    """

    bits: BitTable
    shapes: IntArray
    firsts: IntArray
    before: IntArray
    sizes: FloatArray
    corners: FloatArray

    @classmethod
    def of(cls, grids: Sequence[CellGrid]) -> Self:
        """Return the table of one grid per image."""
        shapes = np.array([grid.chosen.shape for grid in grids], dtype=np.int64)
        ends = np.cumsum(np.prod(shapes, axis=1))
        counts = np.array([int(grid.chosen.sum()) for grid in grids], dtype=np.int64)
        return cls(
            bits=BitTable.of(grid.chosen.ravel() for grid in grids),
            shapes=shapes,
            firsts=ends - np.prod(shapes, axis=1),
            before=np.concatenate([[0], np.cumsum(counts)]),
            sizes=np.array([grid.size for grid in grids]),
            corners=np.array([grid.corner for grid in grids]),
        )

    @property
    def counts(self) -> IntArray:
        """Chosen cells of each image, int64[N]."""
        return np.diff(self.before)

    def points(self, images: IntArray, which: FloatArray, inside: FloatArray) -> FloatArray:
        """Return points in chosen cells, float64[B, D], in elements of the reference.

        Args:
            images: int64[B], images that have a chosen cell.
            which: float64[B] in [0, 1): which of the image's chosen cells.
            inside: float64[B, D] in [0, 1): where in the cell.
        """
        counts = self.counts[images]
        number = np.minimum((which * counts).astype(np.int64), counts - 1) + self.before[images]
        cell = self.bits.select(number) - self.firsts[images]
        coords = np.zeros_like(self.shapes[images])
        for axis in reversed(range(coords.shape[1])):
            coords[:, axis] = cell % self.shapes[images, axis]
            cell = cell // self.shapes[images, axis]
        return self.corners[images] + (coords + inside) * self.sizes[images]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_UNIT = 2.0**-53


def uniform(keys: IntArray, draw: int) -> FloatArray:
    """Return the `draw`-th number of each key, float64[B], uniform in [0, 1)."""
    return _unit(sample_keys(draw, 0, keys).view(np.uint64))


def below(keys: IntArray, draw: int, limits: IntArray) -> IntArray:
    """Return the `draw`-th number of each key as a whole number below its limit, int64[B]; all are equally likely."""
    drawn: IntArray = np.minimum((uniform(keys, draw) * limits).astype(np.int64), limits - 1)
    return drawn


def evenly(numbers: IntArray, offset: int) -> FloatArray:
    """Return numbers of [0, 1) that fill it evenly: any run of n whole numbers holds n * x below x, within a few.

    Multiples of the golden ratio, turned by an offset (Weyl's sequence).
    """
    turn = np.array([offset & (2**64 - 1)], dtype=np.uint64)
    return _unit(numbers.astype(np.uint64) * _GOLDEN + turn)


def pick(bounds: FloatArray, numbers: FloatArray) -> IntArray:
    """Return which interval of cumulative weights float64[N] each number of [0, 1) falls into, int64[B]."""
    found = np.searchsorted(bounds, numbers * bounds[-1], side="right")
    # rounding may reach the very end; intervals of weight zero are never met before it
    last = int(np.searchsorted(bounds, bounds[-1], side="left"))
    picked: IntArray = np.minimum(found, last).astype(np.int64)
    return picked


def _unit(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> FloatArray:
    units: FloatArray = (words >> np.uint64(11)).astype(np.float64) * _UNIT
    return units
