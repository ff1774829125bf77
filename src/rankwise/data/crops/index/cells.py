"""Cells of masks and label images: found by reading each array once, and in tables from which crops are drawn."""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from rankwise._files import write_whole
from rankwise.data.contract import BoolArray, FloatArray, IntArray, NDArray
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.layout import Frame, linked_axes
from rankwise.data.crops.index.rules import Foreground, Mask
from rankwise.data.store.boxes import BoxRequest
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

# Shape and cells of each map, eight cells to a byte.
Maps = dict[Hashable, tuple[tuple[int, ...], npt.NDArray[np.uint8]]]
_LOG = logging.getLogger("rankwise.crops")

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
        """Return the table of booleans that arrive in parts."""
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
        """Number of set bits."""
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
        chosen: bool, one element per cell, with D axes (size 1 along axes that the map lacks).
        size: float64[D], elements of the reference per cell.
        corner: float64[D], start of the first cell, in elements of the reference.
    """

    chosen: BoolArray
    size: FloatArray
    corner: FloatArray

    def at(self, points: FloatArray) -> BoolArray:
        """Return whether points float64[B, D] of the reference lie in chosen cells; points outside the map do not."""
        cells = np.floor((points - self.corner) / self.size).astype(np.int64)
        inside = ((cells >= 0) & (cells < self.chosen.shape)).all(axis=1)
        cells = np.clip(cells, 0, np.array(self.chosen.shape) - 1)
        return np.asarray(inside & self.chosen[tuple(cells.T)], dtype=np.bool_)

    def fraction_in(self, starts: IntArray, extent: IntArray) -> FloatArray:
        """Return the chosen fraction of each box, int64[B, D] and its extent, counted in cells: float64[B]."""
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
            which: float64[B] in [0, 1): selects one of the image's chosen cells.
            inside: float64[B, D] in [0, 1): position in the cell.
        """
        counts = self.counts[images]
        number = np.minimum((which * counts).astype(np.int64), counts - 1) + self.before[images]
        cell = self.bits.select(number) - self.firsts[images]
        coords = np.zeros_like(self.shapes[images])
        for axis in reversed(range(coords.shape[1])):
            coords[:, axis] = cell % self.shapes[images, axis]
            cell = cell // self.shapes[images, axis]
        return self.corners[images] + (coords + inside) * self.sizes[images]


class CellFinder:
    """Finds the cells of images that a mask or labels choose.

    A map is made by reading an array once, completely. In the folder its key consists of the array's place, metadata,
    and the sizes and times of its files, so that an array that was modified is read again.

    Args:
        folder: folder for maps, shared between processes; None = in this process only.

    Attributes:
        maps: the maps so far, also those of other ranks; they live as long as the index, so that its parts and the
            stages of a curriculum need not read again.
        num_read: number of arrays read here.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self.maps: Maps = {}
        self.num_read = 0

    def find(
        self, images: Sequence[CropImage], wanted: Mask | Foreground, frame: Frame, used: BoolArray
    ) -> list[CellGrid]:
        """Return the chosen cells of each image: in the mask, or with one of the labels. Unused images have none."""
        corner, none = np.zeros(frame.num_axes), np.zeros((1,) * frame.num_axes, dtype=np.bool_)
        return [
            self._cells(image, wanted, frame, number)
            if used[number]
            else CellGrid(chosen=none, size=frame.sizes[number].astype(np.float64), corner=corner)
            for number, image in enumerate(images)
        ]

    def _cells(self, image: CropImage, wanted: Mask | Foreground, frame: Frame, number: int) -> CellGrid:
        part = wanted.part if isinstance(wanted, Foreground) else wanted.source
        if not isinstance(part, str):
            key: Hashable = ("mask", image.name, frame.levels[number].array.place)
            allowed = self._map(key, partial(_asked, part, image, frame.num_axes))
            return _given_cells(allowed, frame, number, name=image.name)
        level, classes = image.level(part, wanted.level), wanted.classes if isinstance(wanted, Foreground) else None
        pool = _pooling(level, frame, number)
        key = ("labels", level.array.place, level.array.fingerprint, pool, classes)
        cells = self._map(key, partial(self._labelled, level, pool, classes))
        return _placed_cells(cells, pool, level, frame, number)

    def _map(self, key: Hashable, find: Callable[[], BoolArray]) -> BoolArray:
        if key not in self.maps:
            cells = find()
            self.maps[key] = cells.shape, np.packbits(cells)
        shape, packed = self.maps[key]
        return _unpacked(packed, shape)

    def _labelled(self, level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None) -> BoolArray:
        """Return the cells with one of the labels: from the folder, else from the array."""
        array, path = level.array, None
        if self._folder is not None:
            facts = (1, array.place, array.fingerprint, _files(array.place, remote=array.is_remote), pool, classes)
            path = self._folder / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.npy"
        if path is not None and path.is_file():
            packed = np.load(path, allow_pickle=False)
            shape = tuple(-(-size // step) for size, step in zip(level.array.shape, pool, strict=True))
            if packed.dtype == np.uint8 and packed.size == -(-int(np.prod(shape)) // 8):
                return _unpacked(packed, shape)
        self.num_read += 1
        _LOG.info("reading the labels in %s %s once", level.array.place, list(level.array.shape))
        with BoxReader(cache=0) as reader:
            cells = label_cells(level, pool, classes, reader)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.save(content, np.packbits(cells))
            # Several ranks may make the same map at once: each writes its own file, and the last one remains.
            write_whole(path, content.getvalue(), durable=False)
        return cells


def _unpacked(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> BoolArray:
    return np.unpackbits(packed, count=int(np.prod(shape))).astype(np.bool_).reshape(shape)


def _asked(source: Callable[[CropImage], NDArray | None], image: CropImage, num_axes: int) -> BoolArray:
    """Return where a user function allows crops in an image; None from it allows all."""
    given = source(image)
    return np.ones((1,) * num_axes, dtype=np.bool_) if given is None else np.asarray(given) != 0


def _files(place: str, *, remote: bool) -> tuple[int, int, int]:
    """Return number, bytes and newest time of a local array's files; an array behind a URL is identified by name."""
    if remote:
        return 0, 0, 0
    num_files = num_bytes = newest = 0
    for folder, _, names in os.walk(place):
        for name in names:
            facts = (Path(folder) / name).stat()
            num_files, num_bytes, newest = num_files + 1, num_bytes + facts.st_size, max(newest, facts.st_mtime_ns)
    return num_files, num_bytes, newest


# Cells are at most this fraction of a crop, so that a crop around a point of a cell contains most of the cell.
_CELLS_PER_CROP = 8
_BATCH_BYTES = 32 << 20


def _pooling(level: Level, frame: Frame, image: int) -> tuple[int, ...]:
    """Return how many array elements form a cell along each of its axes."""
    pool = []
    for axis, reference in enumerate(linked_axes(level, frame)):
        extent = 1.0  # of a crop, in elements of the array
        if reference >= frame.num_stepped:
            extent = float(frame.extent[reference] * frame.spacing[image, reference] / level.spacing[axis])
        pool.append(max(1, int(extent) // _CELLS_PER_CROP))
    return tuple(pool)


def label_cells(level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None, reader: BoxReader) -> BoolArray:
    """Return which cells of an array contain one of the classes (None = anything but 0), bool, one axis per array axis.

    Reads the whole array, each chunk once, a few at a time.

    Raises:
        DataError: the array cannot be read.
    """
    array = level.array
    cells = np.zeros([-(-size // step) for size, step in zip(array.shape, pool, strict=True)], dtype=np.bool_)
    piece = tuple(max(1, min(size, chunk)) for size, chunk in zip(array.shape, array.chunks, strict=True))
    at_once = max(1, _BATCH_BYTES // (math.prod(piece) * array.dtype.itemsize))
    buffer = np.empty((at_once, *piece), dtype=array.dtype)
    for starts in _batches(array.shape, piece, at_once):
        values = buffer[: len(starts)]
        request = BoxRequest(
            arrays=(array,),
            which=np.zeros(len(starts), dtype=np.int64),
            starts=starts,
            shape=piece,
            dtype=array.dtype,
            pad="edge",
        )
        (report,) = reader.read([(reader.plan(request), values)])
        if report.errors:
            raise report.errors[0].error
        found = np.asarray(values != 0 if classes is None else np.isin(values, classes), dtype=np.bool_)
        for start, value in zip(starts.tolist(), found, strict=True):
            if value.any():
                _mark(cells, start, value, pool)
    return cells


def _batches(shape: tuple[int, ...], piece: tuple[int, ...], size: int) -> Iterator[IntArray]:
    starts = itertools.product(*(range(0, total, step) for total, step in zip(shape, piece, strict=True)))
    while batch := list(itertools.islice(starts, size)):
        yield np.array(batch, dtype=np.int64)


def _mark(cells: BoolArray, start: Sequence[int], value: BoolArray, pool: tuple[int, ...]) -> None:
    """Mark the cells that overlap a chosen element of a piece; cells and pieces need not be aligned."""
    low = [s // p for s, p in zip(start, pool, strict=True)]
    high = [-(-(s + e) // p) for s, e, p in zip(start, value.shape, pool, strict=True)]
    before = [s - a * p for s, a, p in zip(start, low, pool, strict=True)]
    whole = np.zeros([(b - a) * p for a, b, p in zip(low, high, pool, strict=True)], dtype=np.bool_)
    whole[tuple(slice(b, b + e) for b, e in zip(before, value.shape, strict=True))] = value
    split = [part for a, b, p in zip(low, high, pool, strict=True) for part in (b - a, p)]
    held = np.asarray(whole.reshape(split).any(axis=tuple(range(1, len(split), 2))), dtype=np.bool_)
    place: BoolArray = cells[tuple(map(slice, low, high))]
    # A piece at the edge is padded with its last element, which may fill cells beyond the array.
    place |= held[tuple(map(slice, place.shape))]


def _placed_cells(cells: BoolArray, pool: tuple[int, ...], level: Level, frame: Frame, image: int) -> CellGrid:
    """Convert cells along the axes of an array to cells along the axes of the reference."""
    linked = linked_axes(level, frame)
    size, corner = frame.sizes[image].astype(np.float64), np.zeros(frame.num_axes)
    for axis, reference in enumerate(linked):
        if reference >= 0:
            spacing, own = frame.spacing[image, reference], level.spacing[axis]
            size[reference] = pool[axis] * own / spacing
            corner[reference] = (level.origin[axis] - own / 2 - frame.corner[image, reference]) / spacing
    unlinked = tuple(axis for axis, reference in enumerate(linked) if reference < 0)
    kept = [reference for reference in linked if reference >= 0]
    merged: BoolArray = np.asarray(cells.any(axis=unlinked), dtype=np.bool_)
    merged = np.transpose(merged, np.argsort(kept).tolist())
    missing = tuple(axis for axis in range(frame.num_axes) if axis not in kept)
    return CellGrid(chosen=np.expand_dims(merged, missing), size=size, corner=corner)


def _given_cells(mask: NDArray, frame: Frame, image: int, *, name: str) -> CellGrid:
    """Return cells for a mask that covers a whole image, at any resolution.

    Raises:
        ConfigError: it has another number of axes than the crops.
    """
    chosen = np.asarray(mask) != 0
    if chosen.ndim == frame.num_axes - frame.num_stepped:
        chosen = np.expand_dims(chosen, tuple(range(frame.num_stepped)))
    if chosen.ndim != frame.num_axes or 0 in chosen.shape:
        raise ConfigError(
            f"the mask of image {name!r} has shape {list(np.shape(mask))}; it must cover the image along the axes "
            f"{', '.join(frame.axes[frame.num_stepped :])}, at any resolution"
        )
    size: FloatArray = frame.sizes[image] / np.array(chosen.shape)
    return CellGrid(chosen=chosen, size=size, corner=np.zeros(frame.num_axes))
