"""Coarse maps of where crops may lie: cells of an image, chosen or not, and a crop around a random chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray
from rankwise.data.crops.index.bits import BitTable

__all__ = ["CellGrid", "CellTable"]


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
