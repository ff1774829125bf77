"""`Nodes`: where nodes are looked up, a store or a catalogue of stores."""

from __future__ import annotations

from typing import Protocol

from rankwise.data.store.meta.arrays import array_of
from rankwise.data.store.meta.consolidated import consolidated_children
from rankwise.data.store.meta.listing import list_inside, natural_order
from rankwise.data.store.meta.nodes import Node, read_node
from rankwise.data.store.meta.values import ArrayMeta

__all__ = ["STORES", "Nodes", "StoredNodes"]


class Nodes(Protocol):
    """Arrays and groups by their place (absolute path, or URL, without a trailing slash)."""

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place, None where there is none.

        Raises:
            DataError: its documents cannot be read.
        """

    def array(self, node: Node) -> ArrayMeta:
        """Return what the documents of an array say.

        Raises:
            DataError: nobody understands them, or batches cannot hold the array.
        """

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place in natural order, with their node where it is known already.

        Args:
            place: a group, or a plain folder.
            group: the group at this place, None for a plain folder.

        Raises:
            DataError: it cannot be listed.
        """


class StoredNodes:
    """The stores themselves.

    On this machine every node is asked for its own documents. Behind a URL, where that is dear, the consolidated
    metadata of a group are believed if it has some.
    """

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place."""
        return read_node(place)

    def array(self, node: Node) -> ArrayMeta:
        """Return what the documents of an array say."""
        return array_of(node)

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place, with their node where it is known already."""
        known = consolidated_children(group) if group is not None and "://" in place else None
        if known is not None:
            return {name: known[name] for name in sorted(known, key=natural_order)}
        return dict.fromkeys(list_inside(place))


STORES = StoredNodes()
