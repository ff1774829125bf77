"""`Image`: one picture at several resolutions, with axes, scales, channels and labels; and functions to open it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rankwise.data.store.meta.nodes import Node, ome_attributes
from rankwise.data.store.meta.tree import STORES, Nodes, describe_group, node_at
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.attributes import Axis, compose, plain_axes, read_axes, take, take_list
from rankwise.errors import DataError

_ROUNDING = 1.001  # scales are written with rounding


def state_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass except `nodes`; for use as its ``__getstate__``."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != "nodes"}


def set_state(value: Any, state: Mapping[str, Any]) -> None:
    """Set the fields of a dataclass; it later reads from the stores. For use as its ``__setstate__``."""
    for name, part in {**state, "nodes": STORES}.items():
        object.__setattr__(value, name, part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLevel:
    """One resolution of an image.

    The centre of element i along an axis lies at ``scale * i + translation``, in the unit of the axis.

    Attributes:
        path: path of its array in the image's group; "" for a plain array.
        array: metadata of the array.
        scale: distance between neighbouring elements along each axis.
        translation: position of the first element along each axis.
    """

    path: str
    array: ArrayMeta
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An OME-Zarr image, or a plain array treated as one.

    Attributes:
        place: absolute path or URL of its group, or of the plain array.
        name: its name in the metadata, "" if none.
        version: its OME-Zarr version, "" if none.
        axes: its axes, in stored order.
        levels: its resolutions, the finest first.
        channels: names of the channels, in stored order; "" for one without a name. Empty if not given.
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
        """The numbers of the spatial axes; those named z, y and x if no types are given."""
        typed = tuple(place for place, axis in enumerate(self.axes) if axis.type == "space")
        return typed or tuple(place for place, axis in enumerate(self.axes) if axis.name in {"z", "y", "x"})

    @property
    def channel_axis(self) -> int | None:
        """Number of the channel axis; None if there is none."""
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
        """Return the number of a channel along the channel axis.

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
            f"{', '.join(map(repr, self.channels)) or 'only by their numbers'}; "
            f"{several if len(numbers) > 1 else f'there is no channel {wanted!r} among them'}"
        )

    def level_for(self, spacing: float | Sequence[float] | Mapping[str, float]) -> int:
        """Return the index of the coarsest level that is at least as fine as requested along each given axis.

        The finest level if none is. A difference of a thousandth counts as equal, because scales are rounded.

        Args:
            spacing: requested distance between elements, in the units of the axes: one number for all spatial axes, one
                for each of them, or by name of axis.

        Raises:
            DataError: there is no such axis, or the number of values is not that of the spatial axes.
        """
        if isinstance(spacing, Mapping):
            wanted = {self.axis(name): distance for name, distance in spacing.items()}
        else:
            axes = self.spatial
            values = [spacing] * len(axes) if isinstance(spacing, int | float) else list(spacing)
            if len(values) != len(axes):
                names = ", ".join(self.axes[axis].name for axis in axes) or "none"
                raise DataError(
                    f"the image {self.place} has {len(axes)} axes of space ({names}) and needs one spacing for each; "
                    f"got {spacing!r}"
                )
            wanted = dict(zip(axes, values, strict=True))
        if not all(distance > 0 for distance in wanted.values()):
            raise DataError(f"a spacing must be above 0, got {spacing!r} for the image {self.place}")
        fine = [
            number
            for number, level in enumerate(self.levels)
            if all(level.scale[axis] <= distance * _ROUNDING for axis, distance in wanted.items())
        ]
        return max(fine, default=0)

    def labels(self) -> tuple[str, ...]:
        """Return the names of the label images of this image; reads one document.

        Raises:
            DataError: the list of labels is damaged.
        """
        node = self.nodes.node(f"{self.place}/labels")
        if node is None or node.kind == "array":
            return ()
        names = take_list(ome_attributes(node), "labels", f"the group {node.place}", default=[])
        if not all(isinstance(name, str) for name in names):
            raise DataError(f"'labels' of the group {node.place} are {names!r:.80}, expected a list of names")
        return tuple(name.strip("/") for name in names)

    def label(self, name: str) -> Image:
        """Return a label image.

        Raises:
            DataError: there is no such label image, or it is damaged.
        """
        node = self.nodes.node(f"{self.place}/labels/{name}")
        if node is None:
            names = ", ".join(map(repr, self.labels())) or "none"
            raise DataError(f"the image {self.place} has no label image {name!r}; its labels are: {names}")
        return image_of(node, self.nodes)


def open_image(uri: str | os.PathLike[str], *, multiscale: int = 0, nodes: Nodes = STORES) -> Image:
    """Open an OME-Zarr image (versions 0.1 to 0.5), or a plain array as an image of one level with spacing 1.

    Args:
        uri: the group of the image, or an array.
        multiscale: which image, for the rare group that describes several.
        nodes: where to look, instead of the stores themselves.

    Raises:
        DataError: there is no image (the message says what there is), or a part of it is missing or damaged.
    """
    return image_of(node_at(uri, nodes), nodes, multiscale=multiscale)


def image_of(node: Node, nodes: Nodes, *, multiscale: int = 0) -> Image:
    """Return the image for a node; see `open_image`."""
    if node.kind == "array":
        array = nodes.array(node)
        ones, zeros = (1.0,) * array.ndim, (0.0,) * array.ndim
        level = ImageLevel(path="", array=array, scale=ones, translation=zeros)
        return Image(place=node.place, name="", version="", axes=plain_axes(array), levels=(level,), nodes=nodes)
    ome = ome_attributes(node)
    if "multiscales" not in ome:
        raise DataError(
            f"the group {node.place} is not an OME-Zarr image (no 'multiscales'); it {describe_group(node, nodes)}"
        )
    described = take_list(ome, "multiscales", node.place)
    if not 0 <= multiscale < len(described):
        raise DataError(f"{node.place} describes {len(described)} images, but number {multiscale} was requested")
    found, place = described[multiscale], f"the image {node.place}"
    axes = read_axes(found, place)
    version = ome.get("version", found.get("version"))
    return Image(
        place=node.place,
        name=str(take(found, "name", (str, type(None)), place, default="") or ""),
        version=version if isinstance(version, str) else "",
        axes=axes,
        levels=_levels(node, found, axes, nodes),
        channels=_channels(ome, place),
        nodes=nodes,
    )


def _levels(node: Node, multiscale: Any, axes: tuple[Axis, ...], nodes: Nodes) -> tuple[ImageLevel, ...]:
    place = f"the image {node.place}"
    datasets = take_list(multiscale, "datasets", place)
    if not datasets:
        raise DataError(f"{place} has no levels: its 'datasets' list is empty")
    of_all = multiscale.get("coordinateTransformations") or []
    levels = [_level(node, dataset, of_all, axes, nodes) for dataset in datasets]
    if any("coordinateTransformations" in dataset for dataset in datasets):
        return tuple(levels)
    # versions before 0.4 have none: scales follow from the shapes, relative to the finest level
    first = levels[0].array.shape
    scales = [
        tuple(s * fine / max(1, own) for s, fine, own in zip(level.scale, first, level.array.shape, strict=True))
        for level in levels
    ]
    return tuple(replace(level, scale=scale) for level, scale in zip(levels, scales, strict=True))


def _level(node: Node, dataset: Any, of_all: Any, axes: tuple[Axis, ...], nodes: Nodes) -> ImageLevel:
    path = take(dataset, "path", str, f"a level of the image {node.place}").strip("/")
    place = f"level {path!r} of the image {node.place}"
    inner = _below(node, path, nodes)
    if inner is None or inner.kind != "array":
        raise DataError(f"{place} is {'missing' if inner is None else 'a group'}, but the image lists it as an array")
    array = nodes.array(inner)
    if array.ndim != len(axes):
        raise DataError(
            f"{place} has {array.ndim} axes (shape {list(array.shape)}), but the image lists {len(axes)}: "
            f"{', '.join(axis.name for axis in axes)}"
        )
    own = dataset.get("coordinateTransformations") or []
    scale, translation = compose(own, of_all, num_axes=len(axes), place=place)
    return ImageLevel(path=path, array=array, scale=scale, translation=translation)


def _below(node: Node, path: str, nodes: Nodes) -> Node | None:
    """Return the node at a path below a group; from its consolidated metadata if `Nodes.inside` trusts them."""
    name, _, rest = path.partition("/")
    if ".." in path.split("/"):
        raise DataError(f"the image {node.place} lists the level {path!r}, which is outside the image")
    if node.consolidated is None:
        return nodes.node(f"{node.place}/{path}")
    inner = nodes.inside(node.place, node).get(name)
    return _below(inner, rest, nodes) if rest and inner is not None else inner


def _channels(ome: Mapping[str, Any], place: str) -> tuple[str, ...]:
    where = f"the omero metadata of {place}"
    omero = take(ome, "omero", (dict, type(None)), place, default=None)
    found = take_list(omero, "channels", where, default=[]) if omero else []
    return tuple(str(take(one, "label", (str, int, type(None)), where, default="") or "") for one in found)
