"""From an array of labels, or a mask, to the cells of an image in which it holds something."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray, NDArray
from rankwise.data.crops.index.cells import CellGrid
from rankwise.data.crops.index.frame import Frame
from rankwise.data.crops.index.image import Level
from rankwise.data.crops.index.links import linked_axes
from rankwise.data.store.boxes import BoxRequest
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

__all__ = ["coarse_enough", "given_cells", "label_cells", "pooling"]

# Cells are at most this part of a crop, so that a crop around one of its points holds most of it.
_CELLS_PER_CROP = 8
_BATCH_BYTES = 32 << 20


def coarse_enough(levels: tuple[Level, ...], frame: Frame, image: int) -> Level:
    """Return the coarsest level that still shows what lies in a crop: four elements along each cropped axis."""
    for level in reversed(levels):
        linked = linked_axes(level, frame)
        extents = [_extent_in(level, frame, image, axis, reference) for axis, reference in enumerate(linked)]
        if all(
            extent >= 4 for extent, reference in zip(extents, linked, strict=True) if reference >= frame.num_stepped
        ):
            return level
    return levels[0]


def pooling(level: Level, frame: Frame, image: int) -> tuple[int, ...]:
    """Return how many elements of the array form a cell along each of its axes."""
    return tuple(
        max(1, int(_extent_in(level, frame, image, axis, reference)) // _CELLS_PER_CROP)
        if reference >= frame.num_stepped
        else 1
        for axis, reference in enumerate(linked_axes(level, frame))
    )


def _extent_in(level: Level, frame: Frame, image: int, axis: int, reference: int) -> float:
    """The extent of a crop along an axis of the array, in its elements."""
    if reference < 0:
        return 1.0
    return float(frame.extent[reference] * frame.spacing[image, reference] / level.spacing[axis])


def label_cells(level: Level, pool: tuple[int, ...], classes: tuple[int, ...] | None, reader: BoxReader) -> BoolArray:
    """Return which cells of an array hold one of the classes (None = anything but 0), bool, one axis per array axis.

    Reads the whole array, piece by piece.

    Raises:
        DataError: the array cannot be read.
    """
    array = level.array
    cells = np.zeros([-(-size // step) for size, step in zip(array.shape, pool, strict=True)], dtype=np.bool_)
    piece = tuple(
        min(-(-size // step), max(1, chunk // step)) * step
        for size, step, chunk in zip(array.shape, pool, array.chunks, strict=True)
    )
    for starts in _batches(array.shape, piece, array.dtype.itemsize):
        values = np.empty((len(starts), *piece), dtype=array.dtype)
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
        for start, value in zip(starts.tolist(), _chosen(values, classes), strict=True):
            place = tuple(slice(s // p, s // p + e // p) for s, p, e in zip(start, pool, piece, strict=True))
            cells[place] = _pooled(value, pool)[tuple(slice(0, n) for n in cells[place].shape)]
    return cells


def _batches(shape: tuple[int, ...], piece: tuple[int, ...], itemsize: int) -> Iterator[IntArray]:
    size = max(1, _BATCH_BYTES // (math.prod(piece) * itemsize))
    starts = itertools.product(*(range(0, total, step) for total, step in zip(shape, piece, strict=True)))
    while batch := list(itertools.islice(starts, size)):
        yield np.array(batch, dtype=np.int64)


def _chosen(values: NDArray, classes: tuple[int, ...] | None) -> BoolArray:
    found = values != 0 if classes is None else np.isin(values, classes)
    return np.asarray(found, dtype=np.bool_)


def _pooled(value: BoolArray, pool: tuple[int, ...]) -> BoolArray:
    split = [part for extent, step in zip(value.shape, pool, strict=True) for part in (extent // step, step)]
    return np.asarray(value.reshape(split).any(axis=tuple(range(1, len(split), 2))), dtype=np.bool_)


def placed_cells(cells: BoolArray, pool: tuple[int, ...], level: Level, frame: Frame, image: int) -> CellGrid:
    """Return cells along the axes of an array as cells along the axes of the reference."""
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


def given_cells(mask: NDArray, frame: Frame, image: int, *, name: str) -> CellGrid:
    """Return a mask that covers a whole image, at any resolution, as cells.

    Raises:
        ConfigError: it has another number of axes than the crops.
    """
    chosen = np.asarray(mask) != 0
    if chosen.ndim == frame.num_axes - frame.num_stepped:
        chosen = np.expand_dims(chosen, tuple(range(frame.num_stepped)))
    if chosen.ndim != frame.num_axes or 0 in chosen.shape:
        raise ConfigError(
            f"the mask of image {name!r} has shape {list(np.shape(mask))}; it covers the image along the axes "
            f"{', '.join(frame.axes[frame.num_stepped :])}, at any resolution"
        )
    size: FloatArray = frame.sizes[image] / np.array(chosen.shape)
    return CellGrid(chosen=chosen, size=size, corner=np.zeros(frame.num_axes))
