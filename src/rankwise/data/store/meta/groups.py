"""The arrays of a group."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["list_arrays"]


def list_arrays(
    uri: str | os.PathLike[str], *, bad: dict[str, DataError] | None = None, nodes: Nodes = STORES
) -> dict[str, ArrayMeta]:
    """Return the arrays of a group and of the groups inside it, by their path in the group.

    Args:
        uri: the group.
        bad: where arrays that cannot be read are put, by their path; without it the first one raises.
        nodes: where to look, if not into the stores themselves.

    Raises:
        DataError: there is no group, or an array in it is damaged or cannot form batches.
    """
    place = resolve_place(uri)
    node = nodes.node(place)
    if node is None:
        raise nodes.missing(place)
    if node.kind == "array":
        raise DataError(f"{place} is a single Zarr array, not a group of arrays; read it with read_meta")
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
    """The arrays below a group by path, depth first."""
    for name, known in nodes.inside(group.place, group).items():
        inner = known or nodes.node(f"{group.place}/{name}")
        if inner is not None and inner.kind == "array":
            yield prefix + name, inner
        elif inner is not None:
            yield from _arrays(inner, nodes, f"{prefix}{name}/")
