"""Plates: wells in rows and columns, fields of view in wells, acquisitions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rankwise.data.store.meta.nodes import Node, ome_attributes
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
    nodes: Nodes = field(default=STORES, repr=False, compare=False)

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
    nodes: Nodes = field(default=STORES, repr=False, compare=False)

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
