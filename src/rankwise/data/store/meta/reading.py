"""From a path to an `ArrayMeta`."""

from __future__ import annotations

import os
from dataclasses import replace

from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import Node, absent, read_node
from rankwise.data.store.meta.parsing import parse_array
from rankwise.data.store.meta.strict import UnreadableError
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["array_of", "read_meta"]


def read_meta(uri: str | os.PathLike[str]) -> ArrayMeta:
    """Return what the metadata of one array say.

    Raises:
        DataError: there is no array, or its metadata are damaged, or say what neither we nor zarr-python understand.
        MissingExtraError: they need zarr-python, which is not installed.
    """
    place = resolve_place(uri)
    node = read_node(place)
    if node is None:
        raise absent(place)
    return array_of(node)


def array_of(node: Node) -> ArrayMeta:
    """Return what the documents of an array say.

    Raises:
        DataError: as for `read_meta`.
    """
    try:
        meta = parse_array(node.document, node.attributes, zarr_format=node.zarr_format)
    except UnreadableError as error:
        name = node.names[1 if node.zarr_format == 2 else 0]
        raise DataError(f"the array {node.place} cannot be read after its {name}: {error}") from error
    return replace(meta, place=node.place)
