"""Reads an `ArrayMeta` from a path; describes groups in messages."""

from __future__ import annotations

import os
from functools import partial

from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import Node, ome_attributes
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["describe_group", "read_meta"]

_MOST = 8


def describe_group(group: Node, nodes: Nodes) -> str:
    """Return a predicate for "it": "is an OME-Zarr image with the levels ...", "holds the arrays ..."."""
    try:
        ome = ome_attributes(group)
        if "plate" in ome:
            return "is an OME-Zarr plate; open its images with open_plate or iter_images"
        if "multiscales" in ome:
            levels = _listed(ome["multiscales"][0]["datasets"])
            return f"is an OME-Zarr image with the levels {levels}: read one of them, or use open_image"
        return f"holds {_inside(group, nodes)}"
    except (DataError, KeyError, IndexError, TypeError):
        return "holds items that cannot be listed"


def _inside(group: Node, nodes: Nodes) -> str:
    kinds: dict[str, list[str]] = {"arrays": [], "images": [], "groups": []}
    for name, known in nodes.inside(group.place, group).items():
        node = known or nodes.node(f"{group.place}/{name}")
        if node is not None:
            kinds[_kind(node)].append(name)
        if sum(map(len, kinds.values())) > _MOST:
            break
    return "; ".join(f"the {kind} {_names(names)}" for kind, names in kinds.items() if names) or "nothing"


def _kind(node: Node) -> str:
    if node.kind == "array":
        return "arrays"
    return "images" if "multiscales" in ome_attributes(node) else "groups"


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_MOST])) + (", ..." if len(names) > _MOST else "")


def _listed(datasets: list[dict[str, str]]) -> str:
    return _names([dataset["path"] for dataset in datasets])


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
    return nodes.kept(resolve_place(uri), partial(_read, nodes))


def _read(nodes: Nodes, place: str) -> ArrayMeta:
    node = nodes.node(place)
    if node is None:
        raise nodes.missing(place)
    if node.kind == "group":
        raise DataError(f"{place} is a Zarr group, not an array; it {describe_group(node, nodes)}")
    return nodes.array(node)
