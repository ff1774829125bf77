"""One image of an index: its arrays, their position in space, its identity; and which parts are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import JSON, DType, IntArray, NDArray, whole_number
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.fields import Normalise, Scaling, check_normalise
from rankwise.data.crops.sample import Dtype, DtypeLike, parse_dtype, plain_channel, resolved_dtype
from rankwise.data.store.boxes import Pad
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.images import Image
from rankwise.errors import ConfigError

_CHANNEL_NAMES = frozenset({"c", "channel", "channels"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """One array and its position in space.

    Attributes:
        array: the array.
        axes: a name for each axis; unnamed axes are named by their number from the end, "-1" for the last.
        spacing: distance between neighbouring elements along each axis, in the units of the image.
        origin: position of the centre of the first element.
        channel_axis: the channel axis, None if there is none.
        channels: channel names, along that axis; empty if there are none.
    """

    array: ArrayMeta
    axes: tuple[str, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    channel_axis: int | None = None
    channels: tuple[str, ...] = ()

    def channel(self, wanted: str | int) -> int:
        """Return the number of a channel.

        Raises:
            ConfigError: there is no such channel, or several have this name; the message lists the existing ones.
        """
        axis = self.channel_axis
        size = 0 if axis is None else self.array.shape[axis]
        if isinstance(wanted, int) and -size <= wanted < size:
            return wanted % size
        numbers = [number for number, name in enumerate(self.channels[:size]) if name == wanted]
        if len(numbers) == 1:
            return numbers[0]
        if numbers:
            raise ConfigError(
                f"the channels {numbers} of {self.array.place} are all named {wanted!r}: choose one by its number"
            )
        named = ", ".join(map(repr, self.channels)) or "without names"
        has = "no axis of channels" if axis is None else f"{size} channels: {named}"
        raise ConfigError(f"{self.array.place} has no channel {wanted!r}; it has {has}")


def plain_level(array: ArrayMeta, *, spacing: tuple[float, ...] | None = None) -> Level:
    """Return an array as a level by itself; spacing 1 along each axis by default.

    Raises:
        ConfigError: `spacing` has another number of axes, or is not positive.
    """
    spacing = (1.0,) * array.ndim if spacing is None else spacing
    if len(spacing) != array.ndim or not all(distance > 0 for distance in spacing):
        raise ConfigError(
            f"{array.place} has {array.ndim} axes and needs a spacing above 0 for each; got {list(spacing)}"
        )
    axes = tuple(name or str(axis - array.ndim) for axis, name in enumerate(array.dimension_names))
    return Level(
        array=array,
        axes=axes,
        spacing=spacing,
        # The corner of the first element is at 0, so that arrays with other spacings cover the same space.
        origin=tuple(distance / 2 for distance in spacing),
        channel_axis=next((axis for axis, name in enumerate(axes) if name in _CHANNEL_NAMES), None),
    )


def image_levels(image: Image) -> tuple[Level, ...]:
    """Return the levels of an image; a plain array is one level with spacing 1."""
    if not image.levels[0].path:
        return (plain_level(image.levels[0].array),)
    return tuple(
        Level(
            array=level.array,
            axes=tuple(axis.name for axis in image.axes),
            spacing=level.scale,
            origin=level.translation,
            channel_axis=image.channel_axis,
            channels=image.channels,
        )
        for level in image.levels
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CropImage:
    """One image: its arrays by part ("image", "label", ...) and level, and its identity.

    Attributes:
        name: identity, equal for a copy at another path; splits use it.
        parts: for each part its levels, the finest first.
        plate: name of its plate, "" if it has none.
        well: its well, for example "B/03".
        meta: any other information; for `where=`, `weights=`, `split(by=...)` and `labels=`.
    """

    name: str
    parts: Mapping[str, tuple[Level, ...]]
    plate: str = ""
    well: str = ""
    meta: Mapping[str, JSON] = field(default_factory=dict)

    def levels(self, part: str) -> tuple[Level, ...]:
        """Return the levels of a part.

        Raises:
            ConfigError: the image has no such part.
        """
        if part not in self.parts:
            raise ConfigError(
                f"image {self.name!r} has no part {part!r}; it has {', '.join(map(repr, self.parts)) or 'none'}"
            )
        return self.parts[part]

    def level(self, part: str, number: int) -> Level:
        """Return one level of a part; negative numbers count from the coarsest.

        Raises:
            ConfigError: there is no such part or level.
        """
        levels = self.levels(part)
        if not -len(levels) <= number < len(levels):
            raise ConfigError(
                f"part {part!r} of image {self.name!r} has {len(levels)} levels (0 is the finest), not {number}"
            )
        return levels[number]


@dataclass(frozen=True, slots=True)
class Take:
    """What one field of a crop takes from its image.

    The first field of an index is the reference: crops are placed on its array, and the boxes of the other fields
    cover the same place in space, in elements of their own.

    Attributes:
        part: the part of the image: "image", the name of a label image, a key of the given mapping of arrays;
            None = the name of the field.
        channel: a channel by name or number (its axis is then dropped), several of them in that order, or None = all.
        level: resolution level, 0 is the finest. None = the index's level for the reference; for other fields the level
            whose spacing is nearest to the reference's.
        shape: extent along the cropped axes in elements of this field's array, around the same centre; None = the same
            extent in space as the reference.
        dtype: dtype in the batch, named as in `Config` ("f32", "bf16", "i8" of one byte, "native" = that of the arrays)
            or a NumPy dtype. None = float32 for the first field of an index and for normalised fields, that of
            the arrays for other fields.
        pad: how to fill elements outside an array: "fill", "edge", "reflect"; None = boxes must be inside.
        normalise: a `Scaling`, one for each array (or for all arrays below a group) by URI, or a function of the
            array's metadata; evaluated for all arrays when the index is made.
        mask: also make a field ``<name>_mask`` that is true for elements inside the array.

    Raises:
        ConfigError: a value is out of range.
    """

    part: str | None = None
    channel: str | int | Sequence[str | int] | None = None
    level: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: npt.DTypeLike | None = None
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool = False

    def __post_init__(self) -> None:
        if self.pad not in (None, "fill", "edge", "reflect"):
            raise ConfigError(f'pad must be "fill", "edge", "reflect" or None, got {self.pad!r}')
        if self.shape is not None:
            object.__setattr__(self, "shape", plain_extents("shape", self.shape))
            if not all(extent is not None and extent >= 1 for extent in self.shape):
                raise ConfigError(f"a shape needs extents of at least 1, got {list(self.shape)}")
        if self.level is not None:
            object.__setattr__(self, "level", int(self.level))
        object.__setattr__(self, "channel", plain_channel(self.channel))
        if self.channel == ():
            raise ConfigError("channel must be one channel, several, or None for all; got an empty list")
        check_normalise(self.normalise)
        if self.dtype is not None:
            _dtype(self.dtype)

    @property
    def fixed_dtype(self) -> DType | None:
        """Dtype in the batch; None = elements keep the dtype of their array."""
        if self.dtype is not None:
            return _dtype(self.dtype)
        return None if self.normalise is None else np.dtype(np.float32)

    def described(self) -> tuple[object, ...]:
        """Return all that decides the content of the field, for a fingerprint."""
        rule = self.normalise
        scaling = (rule.scale, rule.offset) if isinstance(rule, Scaling) else rule is not None
        channels = self.channel if self.channel is None or isinstance(self.channel, str | int) else list(self.channel)
        dtype = "None" if self.dtype is None else str(_dtype(self.dtype))
        return self.part, channels, self.level, self.shape, dtype, self.pad, scaling, self.mask


def plain_extents(name: str, extents: Any) -> tuple[Any, ...]:
    """Return extents as a tuple of int and None: what a fingerprint is made of may not depend on their types.

    Raises:
        ConfigError: they are not a sequence of whole numbers.
    """
    if not isinstance(extents, Iterable):
        raise ConfigError(f"{name}= has an extent for each axis, such as ({extents}, {extents}); got {extents!r}")
    what = f"an extent of {name}= (elements)"
    return tuple(None if extent is None else whole_number(what, extent) for extent in extents)


def _dtype(wanted: npt.DTypeLike) -> DType | None:
    """Names of `Config` take precedence: for NumPy alone "i8" has eight bytes, and "f16" sixteen. None = "native"."""
    try:
        word = parse_dtype(cast("DtypeLike", wanted))
        return None if word is Dtype.NATIVE else resolved_dtype(word)
    except InvalidArgument as error:
        try:
            dtype: DType = np.dtype(wanted)
        except TypeError:
            raise error from None
        return dtype


def named_takes(
    fields: Mapping[str, Take] | Sequence[str] | None, first: CropImage, pad: Pad | None
) -> dict[str, Take]:
    """Return the fields of an index, completed: names, the reference's dtype, and `pad` where a field says nothing.

    Raises:
        ConfigError: there is none, or one is not a `Take`.
    """
    if isinstance(fields, str):
        raise ConfigError(f"fields= must be a mapping or a list of names, got the string {fields!r}")
    if fields is None:
        fields = list(first.parts)
    takes = dict(fields) if isinstance(fields, Mapping) else {name: Take() for name in fields}
    if not takes or not all(isinstance(take, Take) for take in takes.values()):
        raise ConfigError(f"fields= must map at least one name to Take(...); got {fields!r:.120}")
    first_name, first_take = next(iter(takes.items()))
    if first_take.dtype is None:
        takes[first_name] = replace(first_take, dtype=np.float32)  # as in `Config`
    return {name: take if take.pad is not None else replace(take, pad=pad) for name, take in takes.items()}


def channel_boxes(
    name: str, take: Take, images: Sequence[CropImage], levels: Sequence[Level], axis: int | None
) -> tuple[IntArray, int]:
    """Return the first channel of each box of a sample, int64[N, K], and the number of channels per box.

    Consecutive channels form one box, others a box each.

    Raises:
        ConfigError: there is no such channel, or images differ in their channels.
    """
    if axis is None:
        if take.channel is not None:
            raise ConfigError(
                f"field {name!r} asks for channel {take.channel!r}, but the axes of {levels[0].array.place} "
                f"({', '.join(levels[0].axes)}) have no channels to choose from"
            )
        return np.zeros((len(levels), 1), dtype=np.int64), 1
    if take.channel is None:
        sizes = [level.array.shape[axis] for level in levels]
        other = next((number for number, size in enumerate(sizes) if size != sizes[0]), None)
        if other is not None:
            raise ConfigError(
                f"field {name!r} takes all channels, but {images[0].name!r} has {sizes[0]} and {images[other].name!r} "
                f"{sizes[other]}: select some with Take(channel=[...])"
            )
        return np.zeros((len(levels), 1), dtype=np.int64), sizes[0]
    wanted = [take.channel] if isinstance(take.channel, str | int) else list(take.channel)
    found = np.array([[level.channel(channel) for channel in wanted] for level in levels], dtype=np.int64)
    if (np.diff(found, axis=1) == 1).all():
        return found[:, :1], len(wanted)
    return found, 1


def image_columns(images: Sequence[CropImage], labels: Mapping[str, Callable[[CropImage], Any]]) -> dict[str, NDArray]:
    """Return one array per label, with a row for each image: what the label's function returns for it.

    Raises:
        ConfigError: a function returns something other than numbers, or different shapes.
    """
    if not isinstance(labels, Mapping) or not all(map(callable, labels.values())):
        raise ConfigError(f"labels= must map names of fields to functions of an image; got {labels!r:.120}")
    columns = {}
    for name, label in labels.items():
        rows = [np.asarray(label(image)) for image in images]
        for image, row in zip(images, rows, strict=True):
            if row.dtype.kind not in "?biuf" or row.shape != rows[0].shape:
                raise ConfigError(
                    f"labels={name!r} must return numbers of one shape for every image; for {image.name!r} it returned "
                    f"{row.dtype}{list(row.shape)}, for {images[0].name!r} {rows[0].dtype}{list(rows[0].shape)}"
                )
        columns[name] = np.stack(rows)
    return columns
