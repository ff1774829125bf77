"""Maps of values, and how the arrays of an image are linked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from rankwise.data.contract import BoolArray, FloatArray, IntArray, NDArray
from rankwise.data.crops.index.cells import CellGrid
from rankwise.data.crops.index.frame import Frame
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.data.crops.index.take import Take
from rankwise.data.store.boxes import BoxRequest
from rankwise.data.store.reader import BoxReader
from rankwise.errors import ConfigError

__all__ = ["affine_map", "chosen_levels", "given_cells", "label_cells", "linked_axes", "pooling"]


def linked_axes(level: Level, frame: Frame) -> tuple[int, ...]:
    """Return for each axis of an array the axis of the reference with its name, -1 where there is none.

    Where one of them has no names both count from the end.
    """
    reference = frame.levels[0]
    placed = {axis - reference.array.ndim: number for number, axis in enumerate(frame.where)}
    links = []
    for axis, name in enumerate(level.axes):
        behind = axis - level.array.ndim
        nameless = name == str(behind) or behind < -reference.array.ndim or reference.axes[behind] == str(behind)
        if name in frame.axes:
            links.append(frame.axes.index(name))
        else:
            links.append(placed.get(behind, -1) if nameless else -1)
    return tuple(links)


def affine_map(frame: Frame, levels: Sequence[Level], linked: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return ratio and shift, float64[N, E]: element x of the reference is element ``x * ratio + shift`` of the array.

    Both count from the corner of the first element.
    """
    spacing = np.array([level.spacing for level in levels], dtype=np.float64)
    corner = np.array([level.origin for level in levels], dtype=np.float64) - spacing / 2
    axes = np.array(linked, dtype=np.int64)
    ratio = np.where(axes >= 0, frame.spacing[:, axes] / spacing, 1.0)
    shift = np.where(axes >= 0, (frame.corner[:, axes] - corner) / spacing, 0.0)
    return ratio, shift


def chosen_levels(
    part: str, take: Take, images: Sequence[CropImage], frame: Frame, level: int | None
) -> tuple[Level, ...]:
    """Return the level that a field takes from each image: the one asked for, else that of the nearest spacing.

    Raises:
        ConfigError: an image has no such part or level.
    """
    chosen = take.level if take.level is not None else level
    if chosen is not None:
        return tuple(image.level(part, chosen) for image in images)
    return tuple(_nearest(image.levels(part), own) for image, own in zip(images, frame.levels, strict=True))


def _nearest(levels: tuple[Level, ...], reference: Level) -> Level:
    def distance(level: Level) -> float:
        shared = [
            abs(np.log(level.spacing[axis] / reference.spacing[reference.axes.index(name)]))
            for axis, name in enumerate(level.axes)
            if name in reference.axes
        ]
        return float(sum(shared))

    return min(levels, key=distance)


# Cells are at most this part of a crop, so that a crop around one of its points holds most of it.
_CELLS_PER_CROP = 8
_BATCH_BYTES = 32 << 20


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

    Reads the whole array, each chunk once, a few of them at a time.

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
        found = _chosen(values, classes)
        for start, value in zip(starts.tolist(), found, strict=True):
            if value.any():
                _mark(cells, start, value, pool)
    return cells


def _batches(shape: tuple[int, ...], piece: tuple[int, ...], size: int) -> Iterator[IntArray]:
    starts = itertools.product(*(range(0, total, step) for total, step in zip(shape, piece, strict=True)))
    while batch := list(itertools.islice(starts, size)):
        yield np.array(batch, dtype=np.int64)


def _chosen(values: NDArray, classes: tuple[int, ...] | None) -> BoolArray:
    found = values != 0 if classes is None else np.isin(values, classes)
    return np.asarray(found, dtype=np.bool_)


def _mark(cells: BoolArray, start: Sequence[int], value: BoolArray, pool: tuple[int, ...]) -> None:
    """Choose the cells that meet a chosen element of a piece; neither has to begin where the other does."""
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
