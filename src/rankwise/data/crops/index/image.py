"""One image of an index: the arrays that its crops come from, where they lie in space, and who it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.data.contract import JSON
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.meta.ngff import Image
from rankwise.errors import ConfigError

__all__ = ["CropImage", "Level", "image_levels", "plain_level"]

_CHANNEL_NAMES = frozenset({"c", "channel", "channels"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """One array and how its elements lie in space.

    Attributes:
        array: the array.
        axes: a name for each axis; axes without one are named by their place from the end, "-1" for the last.
        spacing: distance between neighbouring elements along each axis, in the units of the image.
        origin: where the centre of the first element lies.
        channel_axis: the axis of the channels, None if there is none.
        channels: their names, along that axis; empty where they have none.
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
            ConfigError: there is no such channel; the message lists those there are.
        """
        axis = self.channel_axis
        size = 0 if axis is None else self.array.shape[axis]
        if isinstance(wanted, int) and -size <= wanted < size:
            return wanted % size
        if isinstance(wanted, str) and wanted in self.channels:
            return self.channels.index(wanted)
        named = ", ".join(map(repr, self.channels)) or "without names"
        has = "no axis of channels" if axis is None else f"{size} channels: {named}"
        raise ConfigError(f"{self.array.place} has no channel {wanted!r}; it has {has}")


def plain_level(array: ArrayMeta, *, spacing: tuple[float, ...] | None = None) -> Level:
    """Return an array as a level of its own; spacing 1 along each axis if it is not given.

    Raises:
        ConfigError: `spacing` has another number of axes, or is not above 0.
    """
    spacing = (1.0,) * array.ndim if spacing is None else spacing
    if len(spacing) != array.ndim or not all(distance > 0 for distance in spacing):
        raise ConfigError(
            f"{array.place} has {array.ndim} axes and wants a spacing above 0 for each; got {list(spacing)}"
        )
    axes = tuple(name or str(axis - array.ndim) for axis, name in enumerate(array.dimension_names))
    return Level(
        array=array,
        axes=axes,
        spacing=spacing,
        # The corner of the first element lies at 0, so that arrays of other spacings cover the same space.
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
        name: identity, equal for a copy at another path: what splits go by.
        parts: for each part its levels, the finest first.
        plate: name of its plate, "" if it has none.
        well: its well, such as "B/03".
        meta: anything else that is known about it; for `where=`, `weights=`, `split(by=...)` and `labels=`.
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
                f"part {part!r} of image {self.name!r} has {len(levels)} levels (0 is the finest); asked for {number}"
            )
        return levels[number]
