"""The reference of an index, its axes and arrays on which crops are placed; and the boxes of its fields there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankwise.data.contract import DType, FloatArray, IntArray
from rankwise.data.crops.fields import CropField, FieldBoxes
from rankwise.data.crops.index.image import CropImage, Level, Take, channel_boxes
from rankwise.data.crops.index.lattice import Lattice
from rankwise.data.store.meta.values import ArrayMeta
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldLayout:
    """One field of an index, for all images.

    A box starts at ``floor(start * ratio + shift + 0.5)`` along axes that the reference also has, and at 0 along
    others; `bounds` limits it if boxes must be inside the array.

    Attributes:
        field: shape and dtype of the field in a batch.
        arrays: its array in each of the N images.
        linked: int[E], the reference axis for each axis of the field's arrays, -1 if there is none.
        ratio: float64[N, E], elements of the field per element of the reference.
        shift: float64[N, E].
        shape: extent of a box along the E axes.
        channels: int64[N, K], first element along the channel axis for each of the K boxes of a sample.
        channel_axis: that axis, None if there is none.
        bounds: int64[2, N, E], smallest and largest start; None = no limits.
    """

    field: CropField
    arrays: tuple[ArrayMeta, ...]
    linked: tuple[int, ...]
    ratio: FloatArray
    shift: FloatArray
    shape: tuple[int, ...]
    channels: IntArray
    channel_axis: int | None
    bounds: IntArray | None = None

    @property
    def element_bytes(self) -> float:
        """Decoded bytes per element of the reference, in the first image."""
        linked = [axis for axis, reference in enumerate(self.linked) if reference >= 0]
        channels = 1 if self.channel_axis is None else self.arrays[0].chunks[self.channel_axis]
        return float(np.prod(self.ratio[0, linked])) * self.arrays[0].dtype.itemsize * channels

    def on_reference(self, num_axes: int) -> tuple[FloatArray, FloatArray]:
        """Return ratio and shift along the D axes of the reference, float64[N, D]; 0 along axes that it lacks."""
        ratio, shift = np.zeros((2, len(self.arrays), num_axes))
        for axis, reference in enumerate(self.linked):
            if reference >= 0:
                ratio[:, reference], shift[:, reference] = self.ratio[:, axis], self.shift[:, axis]
        return ratio, shift

    def boxes(self, images: IntArray, starts: IntArray) -> FieldBoxes:
        """Return the boxes for crops that start at int64[B, D] on the reference arrays of images int64[B]."""
        used, which = np.unique(images, return_inverse=True)
        num_boxes = self.channels.shape[1]
        placed = np.repeat(self.starts(images, starts), num_boxes, axis=0)
        if self.channel_axis is not None:
            placed[:, self.channel_axis] = self.channels[images].ravel()
        return FieldBoxes(
            arrays=tuple(self.arrays[image] for image in used.tolist()),
            which=np.repeat(which.astype(np.int64), num_boxes),
            starts=placed,
            shape=self.shape,
            rows=np.arange(len(images)),
        )

    def starts(self, images: IntArray, starts: IntArray) -> IntArray:
        """Return the starts of crops on the field's own arrays, int64[B, E]."""
        linked = np.array(self.linked, dtype=np.int64)
        placed = np.floor(starts[:, linked] * self.ratio[images] + self.shift[images] + 0.5).astype(np.int64)
        placed[:, linked < 0] = 0
        return placed if self.bounds is None else np.clip(placed, *self.bounds[:, images])


def make_layout(
    name: str, take: Take, images: Sequence[CropImage], frame: Frame, lattice: Lattice, *, level: int | None
) -> FieldLayout:
    """Return the layout of one field, at a level, or None = that with the spacing nearest to the reference's.

    Raises:
        ConfigError: the field's arrays do not fit the reference or each other, or boxes leave them without `pad`.
    """
    part, chosen = take.part or name, level if take.level is None else take.level
    levels = tuple(
        _nearest(image.levels(part), own) if chosen is None else image.level(part, chosen)
        for image, own in zip(images, frame.levels, strict=True)
    )
    refuse_other_axes(name, images, levels)
    linked = linked_axes(levels[0], frame)
    axis = levels[0].channel_axis
    channel_axis = None if axis is not None and linked[axis] >= 0 else axis  # none to select from if crops cut it
    _refuse_unlinked(name, images, levels, linked, channel_axis)
    channels, channel_extent = channel_boxes(name, take, images, levels, channel_axis)
    ratio, shift = affine_map(frame, levels, linked)
    shape = _extents(name, take, frame, linked, ratio=ratio, images=images)
    axes = np.array(linked, dtype=np.int64)
    spare = frame.extent[axes] * ratio - np.array(shape)  # half of it comes before a box: its centre is the crop's
    shift = np.where(axes >= 0, shift + spare / 2, shift)
    if channel_axis is not None:
        shape[channel_axis] = channel_extent
    kept = [axis for axis, reference in enumerate(linked) if reference >= frame.num_stepped or axis == channel_axis]
    sample_shape = _sample_shape(name, take, kept, shape, channel_axis=channel_axis, num_boxes=channels.shape[1])
    arrays = tuple(level.array for level in levels)
    dtype = _common_dtype(name, take, arrays)
    field = CropField(shape=sample_shape, dtype=dtype, pad=take.pad, normalise=take.normalise, mask=take.mask)
    for array in arrays if take.normalise is not None else ():
        field.scaling(array)  # raises now for an array without one, not at the first read
    layout = FieldLayout(
        field=field,
        arrays=arrays,
        linked=linked,
        ratio=ratio,
        shift=shift,
        shape=tuple(shape),
        channels=channels,
        channel_axis=channel_axis,
    )
    return layout if take.pad is not None else _kept_inside(name, layout, lattice)


def _nearest(levels: tuple[Level, ...], reference: Level) -> Level:
    """Return the level with the spacing nearest to the reference's."""

    def distance(level: Level) -> float:
        shared = [
            abs(np.log(level.spacing[axis] / reference.spacing[reference.axes.index(name)]))
            for axis, name in enumerate(level.axes)
            if name in reference.axes
        ]
        return float(sum(shared))

    return min(levels, key=distance)


def _refuse_unlinked(
    name: str, images: Sequence[CropImage], levels: Sequence[Level], linked: tuple[int, ...], channel_axis: int | None
) -> None:
    single = [axis for axis, reference in enumerate(linked) if reference < 0 and axis != channel_axis]
    for image, level in zip(images, levels, strict=True):
        for axis in single:
            if level.array.shape[axis] != 1:
                raise ConfigError(
                    f"field {name!r} has {level.array.shape[axis]} elements along axis {level.axes[axis]} of image "
                    f"{image.name!r}, an axis that the reference lacks: it is unclear which of them belong to a crop"
                )


def _extents(
    name: str, take: Take, frame: Frame, linked: tuple[int, ...], *, ratio: FloatArray, images: Sequence[CropImage]
) -> list[int]:
    """Return the extent of a box along each axis; 1 along axes that the reference lacks."""
    if take.shape is not None and len(take.shape) != len(frame.shape):
        raise ConfigError(
            f"Take(shape={take.shape}) of field {name!r} needs {len(frame.shape)} extents, one for each cropped axis"
        )
    extents = []
    for axis, reference in enumerate(linked):
        cropped = reference - frame.num_stepped
        if cropped < 0:
            extents.append(1)
        elif take.shape is not None:
            extents.append(take.shape[cropped])
        else:
            rounded = np.maximum(np.floor(frame.extent[reference] * ratio[:, axis] + 0.5), 1)
            other = np.flatnonzero(rounded != rounded[0])
            if len(other):
                raise ConfigError(
                    f"in elements of field {name!r} a crop is {rounded[0]:g} long in image {images[0].name!r}, but "
                    f"{rounded[other[0]]:g} in {images[int(other[0])].name!r}, as their spacings differ: set the "
                    "field's shape"
                )
            extents.append(int(rounded[0]))
    return extents


def _sample_shape(
    name: str, take: Take, kept: list[int], shape: Sequence[int], *, channel_axis: int | None, num_boxes: int
) -> tuple[int, ...]:
    """Return the sample shape of a box: its cropped axes and that of channels, unless a single one was selected."""
    if num_boxes > 1 and kept[0] != channel_axis:
        raise ConfigError(
            f"field {name!r} takes the channels {take.channel!r}, which are not contiguous, along an axis that "
            "is not the first: take all channels and select in transform=, or make each one a separate field"
        )
    if isinstance(take.channel, str | int):
        kept = [axis for axis in kept if axis != channel_axis]
    return tuple(shape[axis] * (num_boxes if axis == channel_axis else 1) for axis in kept)


def _common_dtype(name: str, take: Take, arrays: Sequence[ArrayMeta]) -> DType:
    if take.fixed_dtype is not None:
        return take.fixed_dtype
    stored = arrays[0].dtype
    other = next((array for array in arrays if array.dtype != stored), None)
    if other is not None:
        raise ConfigError(
            f"field {name!r} would take the dtype of its arrays, but {arrays[0].place} holds {stored} and "
            f"{other.place} {other.dtype}: set one, Take(dtype=...)"
        )
    return stored


def _kept_inside(name: str, layout: FieldLayout, lattice: Lattice) -> FieldLayout:
    """Limit rounding, which may move boxes by one element, and refuse boxes that would be outside in other ways."""
    every = np.arange(len(layout.arrays), dtype=np.int64)
    sizes = np.array([array.shape for array in layout.arrays], dtype=np.int64)
    high = sizes - np.array(layout.shape, dtype=np.int64)
    first, last = layout.starts(every, lattice.origin), layout.starts(every, lattice.last)
    outside = ((first < -1) | (last > high + 1) | (high < 0)) & (lattice.totals() > 0)[:, None]
    if outside.any():
        image, axis = (int(place[0]) for place in np.nonzero(outside))
        raise ConfigError(
            f"boxes of field {name!r} would leave {layout.arrays[image].place}: along axis {axis} they begin at "
            f"{int(first[image, axis])} to {int(last[image, axis])} and are {layout.shape[axis]} long; the array has "
            f'{int(sizes[image, axis])} elements: set Take(pad="fill", "edge" or "reflect"), or use smaller crops'
        )
    high = np.maximum(high, 0)
    return replace(layout, bounds=np.stack([np.zeros_like(high), high]))
