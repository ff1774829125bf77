"""From the documents of one array to an `ArrayMeta` with its place."""

from __future__ import annotations

from dataclasses import replace

from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.parsing import parse_array
from rankwise.data.store.meta.strict import UnreadableError
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["array_of"]


def array_of(node: Node) -> ArrayMeta:
    """Return what the documents of an array say.

    Raises:
        DataError: nobody understands them, or batches cannot hold the array.
        MissingExtraError: they need zarr-python, which is not installed.
    """
    try:
        meta = parse_array(node.document, node.attributes, zarr_format=node.zarr_format)
    except UnreadableError as error:
        name = node.names[1 if node.zarr_format == 2 else 0]
        raise DataError(f"the array {node.place} cannot be read after its {name}: {error}") from error
    return replace(meta, place=node.place)
