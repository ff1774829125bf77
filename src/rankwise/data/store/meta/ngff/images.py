"""Open an image: its axes, levels, channels and label images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.ngff.attributes import compose, ome_attributes, plain_axes, read_axes, take, take_list
from rankwise.data.store.meta.ngff.values import Axis, Image, ImageLevel
from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.errors import DataError

__all__ = ["image_of", "label_names", "open_image", "open_label"]


def open_image(uri: str | os.PathLike[str], *, multiscale: int = 0, nodes: Nodes = STORES) -> Image:
    """Open an OME-Zarr image (versions 0.1 to 0.5), or a plain array as an image of one level with spacing 1.

    Args:
        uri: the group of the image, or an array.
        multiscale: which image, for the rare group that describes several.
        nodes: where to look, if not into the stores themselves.

    Raises:
        DataError: there is no image (the message says what there is), or a part of it is missing or damaged.
    """
    place = resolve_place(uri)
    node = nodes.node(place)
    if node is None:
        raise nodes.missing(place)
    return image_of(node, nodes, multiscale=multiscale)


def image_of(node: Node, nodes: Nodes, *, multiscale: int = 0) -> Image:
    """Return the image that a node describes; as `open_image`."""
    if node.kind == "array":
        return _plain_image(node, nodes)
    ome = ome_attributes(node)
    if "multiscales" not in ome:
        from rankwise.data.store.meta.reader import describe_group

        raise DataError(
            f"the group {node.place} is no OME-Zarr image (no 'multiscales'); it {describe_group(node, nodes)}"
        )
    described = take_list(ome, "multiscales", node.place)
    if not 0 <= multiscale < len(described):
        raise DataError(f"{node.place} describes {len(described)} images, asked for number {multiscale}")
    return _read(node, ome, described[multiscale], nodes)


def _plain_image(node: Node, nodes: Nodes) -> Image:
    array = nodes.array(node)
    ones, zeros = (1.0,) * array.ndim, (0.0,) * array.ndim
    level = ImageLevel(path="", array=array, scale=ones, translation=zeros)
    return Image(place=node.place, name="", version="", axes=plain_axes(array), levels=(level,), nodes=nodes)


def _read(node: Node, ome: Mapping[str, Any], multiscale: Any, nodes: Nodes) -> Image:
    place = f"the image {node.place}"
    axes = read_axes(multiscale, place)
    return Image(
        place=node.place,
        name=str(take(multiscale, "name", (str, type(None)), place, default="") or ""),
        version=_version(ome, multiscale),
        axes=axes,
        levels=_levels(node, multiscale, axes, nodes),
        channels=_channels(ome, place),
        nodes=nodes,
    )


def _levels(node: Node, multiscale: Any, axes: tuple[Axis, ...], nodes: Nodes) -> tuple[ImageLevel, ...]:
    place = f"the image {node.place}"
    datasets = take_list(multiscale, "datasets", place)
    if not datasets:
        raise DataError(f"{place} has no levels: its 'datasets' are empty")
    of_all = multiscale.get("coordinateTransformations") or []
    levels = [_level(node, dataset, of_all, axes, nodes) for dataset in datasets]
    if any("coordinateTransformations" in dataset for dataset in datasets):
        return tuple(levels)
    return _relative(levels)


def _level(node: Node, dataset: Any, of_all: Any, axes: tuple[Axis, ...], nodes: Nodes) -> ImageLevel:
    path = take(dataset, "path", str, f"a level of the image {node.place}").strip("/")
    place = f"level {path!r} of the image {node.place}"
    inner = _below(node, path, nodes)
    if inner is None or inner.kind != "array":
        raise DataError(f"{place} is {'missing' if inner is None else 'a group'}; the image names it as an array")
    array = nodes.array(inner)
    if array.ndim != len(axes):
        raise DataError(
            f"{place} has {array.ndim} axes (shape {list(array.shape)}), the image names {len(axes)}: "
            f"{', '.join(axis.name for axis in axes)}"
        )
    own = dataset.get("coordinateTransformations") or []
    scale, translation = compose(own, of_all, num_axes=len(axes), place=place)
    return ImageLevel(path=path, array=array, scale=scale, translation=translation)


def _below(node: Node, path: str, nodes: Nodes) -> Node | None:
    """The node at a path below a group; by its consolidated metadata where `Nodes.inside` believes those."""
    name, _, rest = path.partition("/")
    if ".." in path.split("/"):
        raise DataError(f"the image {node.place} names the level {path!r}, which lies outside of it")
    if node.consolidated is None:
        return nodes.node(f"{node.place}/{path}")
    inner = nodes.inside(node.place, node).get(name)
    return _below(inner, rest, nodes) if rest and inner is not None else inner


def _relative(levels: list[ImageLevel]) -> tuple[ImageLevel, ...]:
    """Scales of versions before 0.4, which state none: relative to the finest level, after the shapes."""
    first = levels[0].array.shape
    return tuple(
        ImageLevel(
            path=level.path,
            array=level.array,
            scale=tuple(
                s * fine / max(1, own) for s, fine, own in zip(level.scale, first, level.array.shape, strict=True)
            ),
            translation=level.translation,
        )
        for level in levels
    )


def _version(ome: Mapping[str, Any], multiscale: Any) -> str:
    stated = ome.get("version", multiscale.get("version"))
    return stated if isinstance(stated, str) else ""


def _channels(ome: Mapping[str, Any], place: str) -> tuple[str, ...]:
    where = f"the omero metadata of {place}"
    omero = take(ome, "omero", (dict, type(None)), place, default=None)
    found = take_list(omero, "channels", where, default=[]) if omero else []
    return tuple(str(take(one, "label", (str, int, type(None)), where, default="") or "") for one in found)


def label_names(place: str, nodes: Nodes) -> tuple[str, ...]:
    """Return the names of the label images of the image at a place.

    Raises:
        DataError: the list of labels is damaged.
    """
    node = nodes.node(f"{place}/labels")
    if node is None or node.kind == "array":
        return ()
    names = take_list(ome_attributes(node), "labels", f"the group {node.place}", default=[])
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"'labels' of the group {node.place} are {names!r:.80}, wanted a list of names")
    return tuple(name.strip("/") for name in names)


def open_label(place: str, name: str, nodes: Nodes) -> Image:
    """Return a label image of the image at a place.

    Raises:
        DataError: there is no such label image, or it is damaged.
    """
    node = nodes.node(f"{place}/labels/{name}")
    if node is None:
        names = ", ".join(map(repr, label_names(place, nodes))) or "none"
        raise DataError(f"the image {place} has no label image {name!r}; its labels are: {names}")
    return image_of(node, nodes)
