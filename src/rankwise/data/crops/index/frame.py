"""The reference of an index: the axes and arrays on which crops are placed, and their extent there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import FloatArray, IntArray
from rankwise.data.crops.index.image import CropImage, Level
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """Coordinates of crops: D axes, first the stepped ones (one element at a time, e.g. time), then the cropped ones.

    Attributes:
        levels: the reference array of each of the N images.
        axes: names of the D axes.
        where: int[D], the corresponding axes of the reference arrays.
        extent: int64[D], extent of a crop; 1 along stepped axes.
        num_stepped: number of stepped axes.
        sizes: int64[N, D], sizes of the images.
        spacing: float64[N, D].
        corner: float64[N, D], position of the first element's corner in space.
        chunks: int64[N, D], chunk grid.
    """

    levels: tuple[Level, ...]
    axes: tuple[str, ...]
    where: tuple[int, ...]
    extent: IntArray
    num_stepped: int
    sizes: IntArray
    spacing: FloatArray
    corner: FloatArray
    chunks: IntArray

    @property
    def num_axes(self) -> int:
        """D."""
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents along the cropped axes."""
        return tuple(int(extent) for extent in self.extent[self.num_stepped :])


def make_frame(images: Sequence[CropImage], *, part: str, level: int, shape: tuple[int | None, ...]) -> Frame:
    """Return the frame of crops of `shape`.

    The extents are for the last axes that are not channels; None means a whole axis. A shape with one extent
    for every axis of the arrays crops them all, channels included.

    Raises:
        ConfigError: arrays do not fit the shape or each other, or a remaining axis has no name.
    """
    levels = tuple(image.level(part, level) for image in images)
    first = levels[0]
    refuse_other_axes(part, images, levels)
    cropped, stepped = _split_axes(first, len(shape))
    where = (*stepped, *cropped)
    shapes = np.array([[level.array.shape[axis] for axis in where] for level in levels], dtype=np.int64)
    spacing = np.array([[level.spacing[axis] for axis in where] for level in levels], dtype=np.float64)
    origin = np.array([[level.origin[axis] for axis in where] for level in levels], dtype=np.float64)
    whole = [_extent(part, shapes[:, len(stepped) + axis], extent) for axis, extent in enumerate(shape)]
    return Frame(
        levels=levels,
        axes=tuple(first.axes[axis] for axis in where),
        where=where,
        extent=np.array([1] * len(stepped) + whole, dtype=np.int64),
        num_stepped=len(stepped),
        sizes=shapes,
        spacing=spacing,
        corner=origin - spacing / 2,
        chunks=np.array([[level.array.chunks[axis] for axis in where] for level in levels], dtype=np.int64),
    )


def refuse_other_axes(name: str, images: Sequence[CropImage], levels: Sequence[Level]) -> None:
    """Raise a `ConfigError` if a part or field has other axes in some of the images."""
    first = levels[0]
    for image, other in zip(images, levels, strict=True):
        if other.axes != first.axes:
            raise ConfigError(
                f"the images of an index must have the same axes: {name!r} of {images[0].name!r} has "
                f"{', '.join(first.axes)} and that of {image.name!r} has {', '.join(other.axes)}; make two indexes"
            )


def linked_axes(level: Level, frame: Frame) -> tuple[int, ...]:
    """Return for each axis of an array the reference axis with its name, -1 if there is none.

    If one of them has no names, both count from the end.
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

    Both are measured from the corner of the first element.
    """
    spacing = np.array([level.spacing for level in levels], dtype=np.float64)
    corner = np.array([level.origin for level in levels], dtype=np.float64) - spacing / 2
    axes = np.array(linked, dtype=np.int64)
    ratio = np.where(axes >= 0, frame.spacing[:, axes] / spacing, 1.0)
    shift = np.where(axes >= 0, (frame.corner[:, axes] - corner) / spacing, 0.0)
    return ratio, shift


def _split_axes(level: Level, num_cropped: int) -> tuple[list[int], list[int]]:
    """Return the cropped axes and the stepped ones of the reference array."""
    ndim, channel = level.array.ndim, level.channel_axis
    if num_cropped == ndim:
        return list(range(ndim)), []
    free = [axis for axis in range(ndim) if axis != channel]
    if not 1 <= num_cropped <= len(free):
        raise ConfigError(
            f"{level.array.place} has {ndim} axes ({', '.join(level.axes)}), the shape of the crops {num_cropped} "
            "extents: pass one for each axis, or for the last ones"
        )
    stepped = free[: len(free) - num_cropped]
    unnamed = [
        axis for axis in stepped if level.array.dimension_names[axis] is None and level.axes[axis] == str(axis - ndim)
    ]
    if unnamed:
        raise ConfigError(
            f"{level.array.place} has {ndim} axes of shape {list(level.array.shape)}, the shape of the crops "
            f"{num_cropped} extents, but the first axes have no names that identify them: pass an extent for "
            "every axis (None = the whole axis, 1 = one element at a time)"
        )
    return free[len(free) - num_cropped :], stepped


def _extent(part: str, sizes: IntArray, extent: int | None) -> int:
    if extent is not None:
        if extent < 1:
            raise ConfigError(f"the extents of a crop must be at least 1 (or None for a whole axis), got {extent}")
        return int(extent)
    if (sizes != sizes[0]).any():
        raise ConfigError(
            f"None means a whole axis, but the arrays of {part!r} differ in it: {int(sizes.min())} to "
            f"{int(sizes.max())} elements; pass an extent"
        )
    return int(sizes[0])
