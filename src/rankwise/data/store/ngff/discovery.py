"""Finds every image below a place, with its identity."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Literal, NamedTuple

from rankwise.data.store.meta.nodes import Node, ome_attributes, resolve_place
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.ngff.attributes import take_list
from rankwise.data.store.ngff.images import Image, open_image, set_state, state_of
from rankwise.data.store.ngff.plates import fields_of, plate_of
from rankwise.errors import DataError

_DEEPEST = 64  # links between folders may form cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRef:
    """An image that was found, and its identity.

    Attributes:
        place: absolute path or URL of its group, or of a plain array.
        kind: "image" for OME-Zarr, or a plain "array".
        name: identity, equal for a copy elsewhere: the path below the searched folder, beginning with the
            name of the store.
        plate: name of the plate's store as in `name`; "" without a plate.
        well: row and column, for example "B/03"; "" without a plate.
        field: path of the field in its well; "" without a plate.
        acquisition: number of the acquisition; None if not given.
    """

    place: str
    kind: Literal["image", "array"]
    name: str
    plate: str = ""
    well: str = ""
    field: str = ""
    acquisition: int | None = None
    nodes: Nodes = dataclass_field(default=STORES, repr=False, compare=False)

    __getstate__ = state_of
    __setstate__ = set_state

    def open(self) -> Image:
        """Return the image.

        Raises:
            DataError: a part of it is missing or damaged.
        """
        return open_image(self.place, nodes=self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLocation:
    """A place that still has to be searched.

    Attributes:
        ref: facts known about an image there.
        expect: what it must be according to the metadata above it; "any" for a folder or a group without such metadata.
        node: its node, if already known.
        depth: number of folders between it and the start of the search.
    """

    ref: ImageRef
    expect: Literal["any", "well", "image"] = "any"
    node: Node | None = None
    depth: int = 0

    def known(self, **facts: Any) -> SearchLocation:
        """Return the same location with more facts about its image."""
        return replace(self, ref=replace(self.ref, **facts))


class LocationContent(NamedTuple):
    """The content of a location.

    Attributes:
        ref: the image there, if there is one.
        node: its node.
        more: locations below it that still have to be searched.
    """

    ref: ImageRef | None = None
    node: Node | None = None
    more: Sequence[SearchLocation] = ()


def iter_images(
    uri: str | os.PathLike[str], *, bad: dict[str, DataError] | None = None, nodes: Nodes = STORES
) -> Iterator[ImageRef]:
    """Yield every image below a place: a plate, a series, a folder of stores, or a single image.

    Levels and label images of an image are part of it and are not yielded; any other array is. The order
    is that of the metadata (wells, fields, series), else of names, with "2" before "10".

    Args:
        uri: an array, a group, or a plain folder that contains some.
        bad: receives errors of places that cannot be read; without it the first error is raised.
        nodes: where to look, instead of the stores themselves.

    Raises:
        DataError: there is nothing, or a part is damaged or missing.
    """
    pending = [start_location(uri, nodes)]
    while pending:
        location = pending.pop()
        try:
            content = read_location(location, nodes)
        except DataError as error:
            if bad is None:
                raise
            bad[location.ref.place] = error
            continue
        if content.ref is not None:
            yield content.ref
        pending.extend(reversed(content.more))


def start_location(uri: str | os.PathLike[str], nodes: Nodes) -> SearchLocation:
    """Return the start of a search.

    Raises:
        DataError: there is nothing, or its documents cannot be read.
    """
    place = resolve_place(uri)
    node = nodes.node(place)
    if node is None and not nodes.inside(place, None) and not os.path.isdir(place):  # noqa: PTH112
        raise nodes.missing(place)
    name = "" if node is None else place.rsplit("/", 1)[-1]
    return SearchLocation(ref=ImageRef(place=place, kind="image", name=name, nodes=nodes), node=node)


def read_location(location: SearchLocation, nodes: Nodes) -> LocationContent:
    """Read a location.

    Raises:
        DataError: an expected part is missing or damaged.
    """
    node = location.node or nodes.node(location.ref.place)
    if node is None:
        if location.expect != "any":
            raise DataError(f"there is no Zarr group at {location.ref.place}, but its parent's metadata name it")
        return LocationContent(more=_children(location, None, nodes))
    if node.kind == "array":
        return LocationContent(ref=replace(location.ref, kind="array"), node=node)
    return _read_group(location, node, nodes)


def _read_group(location: SearchLocation, group: Node, nodes: Nodes) -> LocationContent:
    ome = ome_attributes(group)
    if "plate" in ome and location.expect == "any":
        wells = [
            replace(_inner(location, well.path), expect="well").known(plate=location.ref.name, well=well.path)
            for well in plate_of(group, nodes).wells
        ]
        return LocationContent(more=wells)
    if "well" in ome and location.expect != "image":
        fields = [
            replace(_inner(location, one.path), expect="image").known(field=one.path, acquisition=one.acquisition)
            for one in fields_of(group, nodes)
        ]
        return LocationContent(more=fields)
    if "multiscales" in ome:
        return LocationContent(ref=location.ref, node=group)
    if location.expect != "any":
        raise DataError(f"the group {location.ref.place} has no 'multiscales', but its parent names it as an image")
    return LocationContent(more=_series(location, group, nodes) or _children(location, group, nodes))


def _series(location: SearchLocation, node: Node, nodes: Nodes) -> list[SearchLocation]:
    """Return the images of a store written by bioformats2raw, in the order that it states."""
    if "bioformats2raw.layout" not in ome_attributes(node):
        return []
    listing = nodes.node(f"{node.place}/OME")
    names = (
        take_list(dict(ome_attributes(listing)), "series", f"the group {listing.place}", default=[]) if listing else []
    )
    return [replace(_inner(location, str(name)), expect="image") for name in names]


def _children(location: SearchLocation, node: Node | None, nodes: Nodes) -> list[SearchLocation]:
    if location.depth >= _DEEPEST:
        raise DataError(f"{location.ref.place} is {_DEEPEST} folders deep; check for circular links")
    inside = nodes.inside(location.ref.place, node)
    return [replace(_inner(location, name), node=known) for name, known in inside.items()]


def _inner(location: SearchLocation, path: str) -> SearchLocation:
    """Return the location at a path below another one."""
    ref = replace(
        location.ref,
        place=f"{location.ref.place}/{path}",
        name=f"{location.ref.name}/{path}" if location.ref.name else path,
    )
    return SearchLocation(ref=ref, depth=location.depth + 1)
