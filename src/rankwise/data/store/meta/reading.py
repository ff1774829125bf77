"""From a path to an `ArrayMeta`."""

from __future__ import annotations

import os
from functools import partial

from rankwise.data.store.meta.descriptions import describe_group
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["read_meta"]


def read_meta(uri: str | os.PathLike[str], *, nodes: Nodes = STORES) -> ArrayMeta:
    """Return what the metadata of one array say.

    They are kept in memory, and read again when a document has changed.

    Args:
        uri: folder of the array, or URL.
        nodes: where to look, if not into the stores themselves: a `Catalogue`, or `StoredNodes` with own options for
            URLs.

    Raises:
        DataError: there is no array (the message says what there is instead), or its metadata are damaged, or say
            what neither we nor zarr-python understand.
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
