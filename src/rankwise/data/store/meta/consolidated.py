"""Consolidated metadata: what a group says about the nodes below it, in one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankwise.data.store.meta.documents import read_document
from rankwise.data.store.meta.nodes import Node, node_of, parse_object
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

__all__ = ["consolidated_children"]

_V2_NAMES = {".zarray": "array", ".zgroup": "group"}


def consolidated_children(group: Node, remote: RemoteFiles | None = None) -> dict[str, Node] | None:
    """Return the nodes directly in a group by name, as its consolidated metadata tell; None without them.

    They are a copy that nothing keeps true, so the documents of the nodes themselves go before them wherever those are
    cheap to read. Nodes that come from here carry the rest of the copy.

    Raises:
        DataError: they are damaged.
    """
    found = group.consolidated
    if found is None:
        found = _v3(group) if group.zarr_format == 3 else _v2(group, remote)
    if found is None:
        return None
    children = {path: node for path, node in found.items() if "/" not in path}
    below: dict[str, dict[str, Node]] = {name: {} for name in children}
    for path, node in found.items():
        name, _, rest = path.partition("/")
        if rest and name in below:
            below[name][rest] = node
    return {name: replace(node, consolidated=below[name]) for name, node in children.items()}


def _v3(group: Node) -> dict[str, Node] | None:
    copy = group.document.get("consolidated_metadata")
    metadata = copy.get("metadata") if isinstance(copy, dict) else None
    if not isinstance(metadata, dict):
        return None
    return {path: node_of(f"{group.place}/{path}", _checked(document, path)) for path, document in metadata.items()}


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
        if path and name in _V2_NAMES:
            found[path] = _v2_node(f"{group.place}/{path}", name, document, metadata.get(f"{path}/.zattrs", {}))
    return found


def _v2_node(place: str, name: str, document: Any, attributes: Any) -> Node:
    return Node(
        place=place,
        kind="array" if name == ".zarray" else "group",
        zarr_format=2,
        document=_checked(document, name),
        attributes=_checked(attributes, ".zattrs"),
        names=("zarr.json", name, ".zattrs"),
    )


def _checked(document: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise DataError(f"the consolidated metadata of {path} are {document!r:.80}, wanted an object")
    return document
