"""`Nodes`: where nodes are looked up, a store or a catalogue of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rankwise.data.store.meta.arrays import array_of
from rankwise.data.store.meta.consolidated import consolidated_children
from rankwise.data.store.meta.documents import list_folders
from rankwise.data.store.meta.kept import KeptMetas
from rankwise.data.store.meta.listing import natural_order
from rankwise.data.store.meta.nodes import Node, absent, read_node
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

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

    def kept(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return what is known of the array at a place already, else read it."""

    def missing(self, place: str) -> DataError:
        """Return the error that says that nothing is at a place."""


class StoredNodes:
    """The stores themselves.

    On this machine every node is asked for its own documents. Behind a URL, where that is dear, the consolidated
    metadata of a group are believed if it has some.

    Args:
        remote: how to read behind URLs; by default with the options of `RemoteFiles`.
    """

    def __init__(self, remote: RemoteFiles | None = None) -> None:
        self._remote = remote
        self._kept = KeptMetas()

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place."""
        return read_node(place, self._remote)

    def array(self, node: Node) -> ArrayMeta:
        """Return what the documents of an array say."""
        return array_of(node)

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place, with their node where it is known already."""
        known = consolidated_children(group, self._remote) if group is not None and "://" in place else None
        if known is not None:
            return {name: known[name] for name in sorted(known, key=natural_order)}
        names = (name for name in list_folders(place, self._remote) if not name.startswith("."))
        return dict.fromkeys(sorted(names, key=natural_order))

    def kept(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return what is known of the array at a place already, if it is still true, else read it."""
        return self._kept.get(place, read)

    def missing(self, place: str) -> DataError:
        """Return the error that says what is at a place instead of a node."""
        return absent(place)

    def __reduce__(self) -> tuple[type[StoredNodes], tuple[RemoteFiles | None]]:
        return type(self), (self._remote,)


STORES = StoredNodes()
