"""What lies at a place: an array, a group, or nothing; its documents parsed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rankwise.data.store.meta.documents import read_document
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

__all__ = ["Node", "absent", "node_of", "parse_object", "read_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An array or a group.

    Attributes:
        place: absolute path or URL.
        kind: which of the two.
        zarr_format: 2 or 3.
        document: its parsed zarr.json, .zarray or .zgroup.
        attributes: the user's attributes.
        names: the documents that decided: they are there, or their absence was needed.
        consolidated: nodes below a group by path, where they came from the consolidated metadata of a group above.
    """

    place: str
    kind: Literal["array", "group"]
    zarr_format: int
    document: Mapping[str, Any] = field(repr=False)
    attributes: Mapping[str, Any] = field(repr=False)
    names: tuple[str, ...]
    consolidated: Mapping[str, Node] | None = field(default=None, repr=False)


def read_node(place: str, remote: RemoteFiles | None = None) -> Node | None:
    """Return the node at a place, None where there is none. Version 3 goes before version 2.

    Raises:
        DataError: a document cannot be read, or is no JSON object.
    """
    found = read_document(place, "zarr.json", remote)
    if found is not None:
        return node_of(place, parse_object(found, place, "zarr.json"))
    kinds: tuple[tuple[str, Literal["array", "group"]], ...] = ((".zarray", "array"), (".zgroup", "group"))
    for name, kind in kinds:
        found = read_document(place, name, remote)
        if found is not None:
            attributes = read_document(place, ".zattrs", remote)
            return Node(
                place=place,
                kind=kind,
                zarr_format=2,
                document=parse_object(found, place, name),
                attributes={} if attributes is None else parse_object(attributes, place, ".zattrs"),
                names=("zarr.json", name, ".zattrs"),
            )
    return None


def absent(place: str) -> DataError:
    """Return the error that says what is at a place instead of a node."""
    return DataError(f"there is no Zarr array or group at {place}{_instead(place)}")


def _instead(place: str) -> str:
    if "://" in place:
        return ""
    try:
        inside = sorted(os.listdir(place))  # noqa: PTH208
    except NotADirectoryError:
        unpack = "; stores in ZIP files are not read, unpack it" if place.endswith(".zip") else ""
        return f": it is a file, not a folder{unpack}"
    except FileNotFoundError:
        return ": no such folder"
    except (OSError, ValueError) as error:
        return f": {error}"
    names = ", ".join(map(repr, inside[:8])) or "nothing"
    more = f" and {len(inside) - 8} more" if len(inside) > 8 else ""
    return f": the folder has no zarr.json, .zarray or .zgroup; it holds {names}{more}"


def node_of(place: str, document: Mapping[str, Any]) -> Node:
    """Return the node that a parsed zarr.json describes.

    Raises:
        DataError: it is neither an array nor a group.
    """
    kind = document.get("node_type")
    if kind not in ("array", "group"):
        raise DataError(f"{place}/zarr.json has the node_type {kind!r}, wanted 'array' or 'group'")
    attributes = document.get("attributes")
    if not isinstance(attributes, dict | None):
        raise DataError(f"{place}/zarr.json has attributes {attributes!r:.80}, wanted an object")
    return Node(
        place=place,
        kind="array" if kind == "array" else "group",
        zarr_format=3,
        document=document,
        attributes=attributes or {},
        names=("zarr.json",),
    )


def parse_object(found: bytes, place: str, name: str) -> dict[str, Any]:
    """Return a JSON object out of the bytes of a document.

    Raises:
        DataError: they are anything else.
    """
    try:
        parsed = json.loads(found)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}/{name} is not JSON ({error}); it is damaged or half written") from error
    if type(parsed) is not dict:
        raise DataError(f"{place}/{name} holds {parsed!r:.80}, wanted an object")
    return parsed
