"""From a path to an `ArrayMeta`."""

from __future__ import annotations

import os

from rankwise.data.store.meta.arrays import array_of
from rankwise.data.store.meta.descriptions import describe_group
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.kept import KeptMetas
from rankwise.data.store.meta.nodes import absent, read_node
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["read_meta"]

_KEPT = KeptMetas()


def read_meta(uri: str | os.PathLike[str]) -> ArrayMeta:
    """Return what the metadata of one array say.

    They are kept in memory and read again when a document has changed.

    Raises:
        DataError: there is no array (the message says what there is instead), or its metadata are damaged, or say
            what neither we nor zarr-python understand.
        MissingExtraError: they need zarr-python, which is not installed.
    """
    place = resolve_place(uri)
    return _KEPT.get(place, _read)


def _read(place: str) -> ArrayMeta:
    node = read_node(place)
    if node is None:
        raise absent(place)
    if node.kind == "group":
        raise DataError(f"{place} is a Zarr group, not an array; it {describe_group(node)}")
    return array_of(node)
