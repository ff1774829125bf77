"""`Nodes`: looks up nodes, in a store or in a catalogue of stores; reads one array, lists those of a group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from rankwise.data.store.meta.nodes import (
    Node,
    absent,
    consolidated_children,
    list_folders,
    natural_order,
    ome_attributes,
    read_node,
    resolve_place,
)
from rankwise.data.store.meta.parser import MetaCache, array_of
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError


class Nodes(Protocol):
    """Arrays and groups by their place (absolute path, or URL, without a trailing slash)."""

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place, None if there is none.

        Raises:
            DataError: its documents cannot be read.
        """

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents.

        Raises:
            DataError: they are not understood, or the array cannot form batches.
        """

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place in natural order, with their nodes if already known.

        Args:
            place: a group, or a plain folder.
            group: the group at this place, None for a plain folder.

        Raises:
            DataError: it cannot be listed.
        """

    def missing(self, place: str) -> DataError:
        """Return the error that says that nothing is at a place."""


class StoredNodes:
    """Looks nodes up in the stores.

    On local disks it reads the documents of every node. Behind a URL, where that is expensive, it trusts the
    consolidated metadata of a group if it has some.

    Args:
        remote: reads from URLs; by default with the options of `RemoteFiles`.

    Attributes:
        metas: the metadata of the last arrays.
    """

    def __init__(self, remote: RemoteFiles | None = None) -> None:
        self._remote = remote
        self.metas = MetaCache()

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place."""
        return read_node(place, self._remote)

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents."""
        return array_of(node)

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place, with their nodes if already known."""
        known = consolidated_children(group, self._remote) if group is not None and "://" in place else None
        if known is not None:
            return {name: known[name] for name in sorted(known, key=natural_order)}
        names = (name for name in list_folders(place, self._remote) if not name.startswith("."))
        return dict.fromkeys(sorted(names, key=natural_order))

    def missing(self, place: str) -> DataError:
        """Return the error that says what is at a place instead of a node."""
        return absent(place)

    def __reduce__(self) -> tuple[type[StoredNodes], tuple[RemoteFiles | None]]:
        return type(self), (self._remote,)


STORES = StoredNodes()


def node_at(uri: str | os.PathLike[str], nodes: Nodes) -> Node:
    """Return the node at a URI.

    Raises:
        DataError: there is none, or its documents cannot be read.
    """
    place = resolve_place(uri)
    node = nodes.node(place)
    if node is None:
        raise nodes.missing(place)
    return node


def list_arrays(
    uri: str | os.PathLike[str], *, bad: dict[str, DataError] | None = None, nodes: Nodes = STORES
) -> dict[str, ArrayMeta]:
    """Return the arrays of a group and of the groups inside it, by their path in the group.

    Args:
        uri: the group.
        bad: receives errors of arrays that cannot be read, by path; without it the first error is raised.
        nodes: where to look, instead of the stores themselves.

    Raises:
        DataError: there is no group, or an array in it is damaged or cannot form batches.
    """
    node = node_at(uri, nodes)
    if node.kind == "array":
        raise DataError(
            f"{node.place} is a single Zarr array, not a group of arrays: use the path as that of an array, "
            "read_meta(path) or ArraySource({'image': path})"
        )
    found: dict[str, ArrayMeta] = {}
    for path, array in _arrays(node, nodes):
        try:
            found[path] = nodes.array(array)
        except DataError as error:
            if bad is None:
                raise
            bad[path] = error
    return found


def _arrays(group: Node, nodes: Nodes, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the arrays below a group by path, depth first."""
    for name, known in nodes.inside(group.place, group).items():
        inner = known or nodes.node(f"{group.place}/{name}")
        if inner is not None and inner.kind == "array":
            yield prefix + name, inner
        elif inner is not None:
            yield from _arrays(inner, nodes, f"{prefix}{name}/")


_MOST = 8


def describe_group(group: Node, nodes: Nodes) -> str:
    """Return a predicate for "it": "is an OME-Zarr image with the levels ...", "holds the arrays ..."."""
    try:
        ome = ome_attributes(group)
        if "plate" in ome:
            return "is an OME-Zarr plate; open its images with open_plate or iter_images"
        if "multiscales" in ome:
            levels = _names([dataset["path"] for dataset in ome["multiscales"][0]["datasets"]])
            return f"is an OME-Zarr image with the levels {levels}: read one of them, or use open_image"
        return f"holds {_inside(group, nodes)}"
    except (DataError, KeyError, IndexError, TypeError):
        return "holds items that cannot be listed"


def _inside(group: Node, nodes: Nodes) -> str:
    kinds: dict[str, list[str]] = {"arrays": [], "images": [], "groups": []}
    for name, known in nodes.inside(group.place, group).items():
        node = known or nodes.node(f"{group.place}/{name}")
        if node is not None:
            is_image = node.kind == "group" and "multiscales" in ome_attributes(node)
            kinds["images" if is_image else f"{node.kind}s"].append(name)
        if sum(map(len, kinds.values())) > _MOST:
            break
    return "; ".join(f"the {kind} {_names(names)}" for kind, names in kinds.items() if names) or "nothing"


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_MOST])) + (", ..." if len(names) > _MOST else "")


def read_meta(uri: str | os.PathLike[str], *, nodes: Nodes = STORES) -> ArrayMeta:
    """Return the metadata of one array.

    They are cached, and read again if a document has changed.

    Args:
        uri: folder of the array, or URL.
        nodes: where to look, instead of the stores themselves: a `Catalogue`, or `StoredNodes` with your own options
            for URLs.

    Raises:
        DataError: there is no array (the message says what there is instead), or its metadata are damaged, or neither
            we nor zarr-python understand them.
        MissingExtraError: they need zarr-python, or the URL needs obstore, which is not installed.
    """
    place = resolve_place(uri)
    return nodes.metas.get(place, partial(_read, nodes)) if isinstance(nodes, StoredNodes) else _read(nodes, place)


def _read(nodes: Nodes, place: str) -> ArrayMeta:
    node = node_at(place, nodes)
    if node.kind == "group":
        raise DataError(f"{place} is a Zarr group, not an array; it {describe_group(node, nodes)}")
    return nodes.array(node)
