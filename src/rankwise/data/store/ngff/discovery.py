"""Plates: wells, fields of view, acquisitions; and how every image below a place is found, with its identity."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Literal, NamedTuple

from rankwise.data.store.meta.nodes import Node, ome_attributes, resolve_place
from rankwise.data.store.meta.tree import STORES, Nodes, node_at
from rankwise.data.store.ngff.attributes import take, take_list
from rankwise.data.store.ngff.images import Image, open_image, set_state, state_of
from rankwise.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquisition:
    """One round of imaging of a plate.

    Attributes:
        id: its number.
        name: its name, "" if none.
    """

    id: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of view of a well.

    Attributes:
        path: path in the well's group.
        place: absolute path or URL of its image.
        acquisition: number of the acquisition that it belongs to; None if not given.
    """

    path: str
    place: str
    acquisition: int | None = None
    nodes: Nodes = dataclass_field(default=STORES, repr=False, compare=False)

    __getstate__ = state_of
    __setstate__ = set_state

    def open(self) -> Image:
        """Return the image.

        Raises:
            DataError: it is missing or damaged.
        """
        return open_image(self.place, nodes=self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Well:
    """One well of a plate.

    Attributes:
        path: path in the plate's group, for example "B/03": row and column.
        place: absolute path or URL of its group.
        row: name of its row.
        column: name of its column.
    """

    path: str
    place: str
    row: str
    column: str
    nodes: Nodes = dataclass_field(default=STORES, repr=False, compare=False)

    __getstate__ = state_of
    __setstate__ = set_state

    def fields(self) -> tuple[Field, ...]:
        """Return the fields of view, in stored order; reads the well's metadata.

        Raises:
            DataError: the well is missing or damaged.
        """
        node = self.nodes.node(self.place)
        if node is None:
            raise DataError(f"the well {self.path!r} at {self.place} is missing, but its plate lists it")
        return fields_of(node, self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """An OME-Zarr plate.

    Attributes:
        place: absolute path or URL of its group.
        name: its name in the metadata, "" if none.
        rows: names of the rows.
        columns: names of the columns.
        acquisitions: its rounds of imaging; empty if not given.
        wells: the imaged wells, in stored order.
    """

    place: str
    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    acquisitions: tuple[Acquisition, ...]
    wells: tuple[Well, ...]

    def well(self, path: str) -> Well:
        """Return the well at a path, for example "B/03".

        Raises:
            DataError: the plate has no such well.
        """
        for well in self.wells:
            if well.path == path.strip("/"):
                return well
        known = ", ".join(repr(well.path) for well in self.wells[:8]) + (", ..." if len(self.wells) > 8 else "")
        raise DataError(f"the plate {self.place} has no well {path!r}; it has {known or 'none'}")

    def __iter__(self) -> Iterator[Well]:
        return iter(self.wells)


def open_plate(uri: str | os.PathLike[str], *, nodes: Nodes = STORES) -> Plate:
    """Open a plate: reads one document; wells are read when their fields are requested.

    Args:
        uri: the group of the plate.
        nodes: where to look, instead of the stores themselves.

    Raises:
        DataError: there is no plate, or its metadata are damaged.
    """
    node = node_at(uri, nodes)
    if node.kind == "array" or "plate" not in ome_attributes(node):
        raise DataError(f"{node.place} is not an OME-Zarr plate: {node.kind} without the attribute 'plate'")
    return plate_of(node, nodes)


def plate_of(node: Node, nodes: Nodes) -> Plate:
    """Return the plate for a group; see `open_plate`."""
    where = f"the plate {node.place}"
    plate = ome_attributes(node)["plate"]
    rows, columns = _names(plate, "rows", where), _names(plate, "columns", where)
    return Plate(
        place=node.place,
        name=str(take(plate, "name", (str, type(None)), where, default="") or ""),
        rows=rows,
        columns=columns,
        acquisitions=tuple(_acquisition(one, where) for one in take_list(plate, "acquisitions", where, default=[])),
        wells=tuple(_well(one, node, rows, columns, nodes) for one in take_list(plate, "wells", where)),
    )


def fields_of(node: Node, nodes: Nodes) -> tuple[Field, ...]:
    """Return the fields of view of a well's group.

    Raises:
        DataError: it is not a well, or is damaged.
    """
    where = f"the well {node.place}"
    well = take(dict(ome_attributes(node)), "well", dict, where)
    fields = []
    for found in take_list(well, "images", where):
        path = _path(take(found, "path", str, f"an image of {where}"), where)
        acquisition = take(found, "acquisition", (int, type(None)), f"an image of {where}", default=None)
        fields.append(Field(path=path, place=f"{node.place}/{path}", acquisition=acquisition, nodes=nodes))
    return tuple(fields)


def _well(found: Any, node: Node, rows: tuple[str, ...], columns: tuple[str, ...], nodes: Nodes) -> Well:
    where = f"a well of the plate {node.place}"
    path = _path(take(found, "path", str, where), where)
    row, _, column = path.partition("/")
    stated = (
        _named(found, "rowIndex", rows, where, default=row),
        _named(found, "columnIndex", columns, where, default=column),
    )
    if stated != (row, column):
        raise DataError(f"{where} has the path {path!r}, but its indices give row {stated[0]!r}, column {stated[1]!r}")
    return Well(path=path, place=f"{node.place}/{path}", row=row, column=column, nodes=nodes)


def _named(found: Any, key: str, names: tuple[str, ...], where: str, *, default: str) -> str:
    number: int | None = take(found, key, int, where, default=None)
    if number is None:
        return default
    if not 0 <= number < len(names):
        raise DataError(f"{where} has the {key} {number}, but the plate has {len(names)}")
    return names[number]


def _names(plate: Any, key: str, where: str) -> tuple[str, ...]:
    return tuple(take(one, "name", str, f"one of the {key} of {where}") for one in take_list(plate, key, where))


def _acquisition(found: Any, where: str) -> Acquisition:
    where = f"an acquisition of {where}"
    name = take(found, "name", (str, type(None)), where, default="")
    return Acquisition(id=take(found, "id", int, where), name=str(name or ""))


def _path(path: str, where: str) -> str:
    parts = path.strip("/").split("/")
    if not path.strip("/") or ".." in parts:
        raise DataError(f"{where} has the path {path!r}, expected one below it")
    return "/".join(parts)


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
