"""The node at a place, an array, a group, or nothing, from single or consolidated documents; only this reads those."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError


def resolve_place(uri: str | os.PathLike[str]) -> str:
    """Return the absolute local path (without a trailing slash) or the URL for a URI."""
    text = os.fspath(uri)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return text.rstrip("/")
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  (several times faster, called per sample)


def read_document(place: str, name: str, remote: RemoteFiles | None = None) -> bytes | None:
    """Return the bytes of a document, None if it does not exist.

    Args:
        place: absolute path, or URL, of an array or group.
        name: for example "zarr.json".
        remote: reads from URLs; by default with the options of `RemoteFiles`, shared by the process.

    Raises:
        DataError: it exists but cannot be read.
    """
    if "://" in place:
        return (remote or _shared_remote()).read_document(f"{place}/{name}")
    path = os.path.join(place, name)  # noqa: PTH118
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def list_folders(place: str, remote: RemoteFiles | None = None) -> list[str]:
    """Return the names of the folders in a place, in any order; empty if there is no folder.

    Raises:
        DataError: it cannot be listed.
    """
    if "://" in place:
        return [url.rsplit("/", 1)[-1] for url in (remote or _shared_remote()).list_prefix(place).folders]
    try:
        with os.scandir(place) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise DataError(f"the folder {place} cannot be listed: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1)
def _shared_remote() -> RemoteFiles:
    return RemoteFiles()


_OME_KEYS = ("multiscales", "plate", "well", "labels", "omero", "bioformats2raw.layout", "series")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An array or a group.

    Attributes:
        place: absolute path or URL.
        kind: "array" or "group".
        zarr_format: 2 or 3.
        document: its parsed zarr.json, .zarray or .zgroup.
        attributes: the user's attributes.
        consolidated: nodes below a group by path, if they come from the consolidated metadata of a group above.
    """

    place: str
    kind: Literal["array", "group"]
    zarr_format: int
    document: Mapping[str, Any] = field(repr=False)
    attributes: Mapping[str, Any] = field(repr=False)
    consolidated: Mapping[str, Node] | None = field(default=None, repr=False)


def read_node(place: str, remote: RemoteFiles | None = None) -> Node | None:
    """Return the node at a place, None if there is none. Version 3 takes precedence over version 2.

    Raises:
        DataError: a document cannot be read, or is not a JSON object.
    """
    found = read_document(place, "zarr.json", remote)
    if found is not None:
        return node_of(place, parse_object(found, place, "zarr.json"))
    for name in (".zarray", ".zgroup"):
        found = read_document(place, name, remote)
        if found is not None:
            attributes = read_document(place, ".zattrs", remote)
            own = {} if attributes is None else parse_object(attributes, place, ".zattrs")
            return v2_node(place, name, parse_object(found, place, name), own)
    return None


def absent(place: str) -> DataError:
    """Return the error that says what is at a place instead of a node."""
    what = f"there is no Zarr array or group at {place}"
    if "://" in place:
        return DataError(what)
    try:
        inside = sorted(os.listdir(place))  # noqa: PTH208
    except NotADirectoryError:
        unpack = "; stores in ZIP files are not supported, unpack it" if place.endswith(".zip") else ""
        return DataError(f"{what}: it is a file, not a folder{unpack}")
    except FileNotFoundError:
        return DataError(f"{what}: no such folder")
    except (OSError, ValueError) as error:
        return DataError(f"{what}: {error}")
    names = ", ".join(map(repr, inside[:8])) or "nothing"
    more = f" and {len(inside) - 8} more" if len(inside) > 8 else ""
    return DataError(f"{what}: the folder has no zarr.json, .zarray or .zgroup; it holds {names}{more}")


def node_of(place: str, document: Mapping[str, Any]) -> Node:
    """Return the node for a parsed zarr.json.

    Raises:
        DataError: it is neither an array nor a group.
    """
    kind = document.get("node_type")
    if kind not in ("array", "group"):
        raise DataError(f"{place}/zarr.json has the node_type {kind!r}, expected 'array' or 'group'")
    attributes = document.get("attributes")
    if not isinstance(attributes, dict | None):
        raise DataError(f"{place}/zarr.json has attributes {attributes!r:.80}, expected an object")
    return Node(
        place=place,
        kind="array" if kind == "array" else "group",
        zarr_format=3,
        document=document,
        attributes=attributes or {},
    )


def v2_node(place: str, name: str, document: Mapping[str, Any], attributes: Mapping[str, Any]) -> Node:
    """Return the node for a parsed .zarray or .zgroup (`name`)."""
    return Node(
        place=place,
        kind="array" if name == ".zarray" else "group",
        zarr_format=2,
        document=document,
        attributes=attributes,
    )


def ome_attributes(node: Node) -> Mapping[str, Any]:
    """Return the OME-Zarr part of a node's attributes, empty if it has none.

    From version 0.5 on it is the attribute "ome"; before, its parts are separate attributes.

    Raises:
        DataError: "ome" is not an object.
    """
    ome = node.attributes.get("ome")
    if isinstance(ome, dict):
        return ome
    if ome is not None and node.zarr_format == 3:
        raise DataError(f"the attribute 'ome' of {node.place} is {ome!r:.80}, expected an object")
    return {key: node.attributes[key] for key in _OME_KEYS if key in node.attributes}


def parse_object(found: bytes, place: str, name: str) -> dict[str, Any]:
    """Return a JSON object from the bytes of a document.

    Raises:
        DataError: they are anything else.
    """
    try:
        parsed = json.loads(found)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}/{name} is not JSON ({error}); it is damaged or incompletely written") from error
    if type(parsed) is not dict:
        raise DataError(f"{place}/{name} holds {parsed!r:.80}, expected an object")
    return parsed


def consolidated_children(group: Node, remote: RemoteFiles | None = None) -> dict[str, Node] | None:
    """Return the direct children of a group by name, from its consolidated metadata; None without them.

    Consolidated metadata are a copy that may be outdated, so the documents of the nodes take precedence if they are
    cheap to read. Nodes from the copy carry the rest of it.

    Raises:
        DataError: they are damaged.
    """
    found = group.consolidated
    if found is None:
        copy = group.document.get("consolidated_metadata")
        metadata = copy.get("metadata") if isinstance(copy, dict) else None
        if group.zarr_format == 2:
            found = _v2(group, remote)
        elif isinstance(metadata, dict):
            place = group.place
            found = {path: node_of(f"{place}/{path}", _checked(one, path)) for path, one in metadata.items()}
    if found is None:
        return None
    children = {path: node for path, node in found.items() if "/" not in path}
    below: dict[str, dict[str, Node]] = {name: {} for name in children}
    for path, node in found.items():
        name, _, rest = path.partition("/")
        if rest and name in below:
            below[name][rest] = node
    return {name: replace(node, consolidated=below[name]) for name, node in children.items()}


def _v2(group: Node, remote: RemoteFiles | None) -> dict[str, Node] | None:
    text = read_document(group.place, ".zmetadata", remote)
    if text is None:
        return None
    metadata = parse_object(text, group.place, ".zmetadata").get("metadata")
    if not isinstance(metadata, dict):
        raise DataError(f"{group.place}/.zmetadata has no object 'metadata'")
    found: dict[str, Node] = {}
    for key, document in metadata.items():
        path, _, name = key.rpartition("/")
        if path and name in (".zarray", ".zgroup"):
            own = _checked(metadata.get(f"{path}/.zattrs", {}), ".zattrs")
            found[path] = v2_node(f"{group.place}/{path}", name, _checked(document, name), own)
    return found


def _checked(document: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise DataError(f"the consolidated metadata of {path} are {document!r:.80}, expected an object")
    return document


_DIGITS = re.compile(r"([0-9]+)")


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts "2" before "10"."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), part) if place % 2 else (1, 0, part) for place, part in enumerate(parts))
