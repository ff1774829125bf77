"""`Image`: one picture at several resolutions, with its axes, scales, channels and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["Axis", "Image", "ImageLevel", "choose_level", "set_state", "state_of"]

_ROUNDING = 1.001  # scales are written rounded


def choose_level(image: Image, spacing: float | Sequence[float] | Mapping[str, float]) -> int:
    """Return the number of the coarsest level that is at least as fine as wanted; see `Image.level_for`."""
    wanted = _by_axis(image, spacing)
    if not all(distance > 0 for distance in wanted.values()):
        raise DataError(f"a spacing must be above 0, asked the image {image.place} for {spacing!r}")
    fine = [
        number
        for number, level in enumerate(image.levels)
        if all(level.scale[axis] <= distance * _ROUNDING for axis, distance in wanted.items())
    ]
    return max(fine, default=0)


def _by_axis(image: Image, spacing: float | Sequence[float] | Mapping[str, float]) -> dict[int, float]:
    if isinstance(spacing, Mapping):
        return {image.axis(name): distance for name, distance in spacing.items()}
    axes = image.spatial
    values = [spacing] * len(axes) if isinstance(spacing, int | float) else list(spacing)
    if len(values) != len(axes):
        names = ", ".join(image.axes[axis].name for axis in axes) or "none"
        raise DataError(
            f"the image {image.place} has {len(axes)} axes of space ({names}) and wants one spacing for each; "
            f"got {spacing!r}"
        )
    return dict(zip(axes, values, strict=True))


def state_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass but for `nodes`; to be its ``__getstate__``."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != "nodes"}


def set_state(value: Any, state: Mapping[str, Any]) -> None:
    """Fill a dataclass in; what it opens later is read from the stores. To be its ``__setstate__``."""
    for name, part in {**state, "nodes": STORES}.items():
        object.__setattr__(value, name, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of an image.

    Attributes:
        name: such as "t", "c", "z", "y", "x".
        type: "space", "time", "channel", another word, or None where nothing is said.
        unit: such as "micrometer"; None where nothing is said.
    """

    name: str
    type: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLevel:
    """One resolution of an image.

    The centre of element i along an axis lies at ``scale * i + translation``, in the unit of the axis.

    Attributes:
        path: path of its array in the image's group; "" for a plain array.
        array: what the array's metadata say.
        scale: distance between neighbouring elements along each axis.
        translation: where the first element lies along each axis.
    """

    path: str
    array: ArrayMeta
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image after OME-Zarr, or a plain array seen as one.

    Attributes:
        place: absolute path or URL of its group, or of the plain array.
        name: the name that its metadata give it, "" if none.
        version: version of OME-Zarr that it states, "" if none.
        axes: its axes, in stored order.
        levels: its resolutions, the finest first.
        channels: names of the channels, in stored order; "" for one without a name. Empty where nothing is said.
    """

    place: str
    name: str
    version: str
    axes: tuple[Axis, ...]
    levels: tuple[ImageLevel, ...]
    channels: tuple[str, ...] = ()
    nodes: Nodes = field(default=STORES, repr=False, compare=False)

    __getstate__ = state_of
    __setstate__ = set_state

    @property
    def spatial(self) -> tuple[int, ...]:
        """The axes of space, by number; the axes named z, y and x where no types are given."""
        typed = tuple(place for place, axis in enumerate(self.axes) if axis.type == "space")
        return typed or tuple(place for place, axis in enumerate(self.axes) if axis.name in {"z", "y", "x"})

    @property
    def channel_axis(self) -> int | None:
        """Number of the axis of channels; None if there is none."""
        typed = [place for place, axis in enumerate(self.axes) if axis.type == "channel"]
        named = [place for place, axis in enumerate(self.axes) if axis.name in {"c", "channel"}]
        return next(iter(typed or named), None)

    def axis(self, name: str) -> int:
        """Return the number of an axis.

        Raises:
            DataError: no axis has this name.
        """
        names = [axis.name for axis in self.axes]
        if name not in names:
            raise DataError(f"the image {self.place} has no axis {name!r}; its axes are {', '.join(names)}")
        return names.index(name)

    def channel(self, wanted: str | int) -> int:
        """Return the number of a channel along the axis of channels.

        Args:
            wanted: its name, or its number (negative ones count from the end).

        Raises:
            DataError: there is no such channel, or several have this name; the message lists them.
        """
        axis = self.channel_axis
        num_channels = 0 if axis is None else self.levels[0].array.shape[axis]
        numbers = [number for number, name in enumerate(self.channels) if name == wanted]
        if isinstance(wanted, int):
            numbers = [wanted % num_channels] if -num_channels <= wanted < num_channels else []
        if len(numbers) == 1 and numbers[0] < num_channels:
            return numbers[0]
        several = f"the channels {numbers} are all named {wanted!r}; choose one by its number"
        raise DataError(
            f"the image {self.place} has {num_channels} channels, named "
            f"{', '.join(map(repr, self.channels)) or 'by nothing but their numbers'}; "
            f"{several if len(numbers) > 1 else f'there is no channel {wanted!r} among them'}"
        )

    def level_for(self, spacing: float | Sequence[float] | Mapping[str, float]) -> int:
        """Return the number of the coarsest level that is at least as fine as wanted along each given axis.

        The finest level if none is. A thousandth more counts as equal, because scales are rounded.

        Args:
            spacing: wanted distance between elements, in the units of the axes: one number for all axes of space, one
                for each of them, or by name of axis.

        Raises:
            DataError: an axis is not there, or the number of values is not that of the axes of space.
        """
        return choose_level(self, spacing)

    def labels(self) -> tuple[str, ...]:
        """Return the names of the label images that belong to this image; reads one document.

        Raises:
            DataError: the list of labels is damaged.
        """
        from rankwise.data.store.meta.ngff.images import label_names

        return label_names(self.place, self.nodes)

    def label(self, name: str) -> Image:
        """Return a label image.

        Raises:
            DataError: there is no such label image, or it is damaged.
        """
        from rankwise.data.store.meta.ngff.images import open_label

        return open_label(self.place, name, self.nodes)
