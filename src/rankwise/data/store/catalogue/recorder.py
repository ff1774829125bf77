"""Looks nodes up in their stores, records them, and checks whether they have changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rankwise.data.store.catalogue.table import Recorded, Table
from rankwise.data.store.meta.arrays import array_of
from rankwise.data.store.meta.documents import stamp_document
from rankwise.data.store.meta.nodes import Node, read_node
from rankwise.data.store.meta.tree import Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

_NOT_KEPT = {"attributes", "consolidated_metadata"}  # stored separately; replaced by the catalogue


class RecordingNodes:
    """`Nodes` that record every node that was looked up; thread-safe.

    Args:
        nodes: where to look nodes up.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.found: dict[str, Recorded] = {}

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place."""
        node = self._nodes.node(place)
        if node is not None:
            self._remember(node)
        return node

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents; forget an array that cannot be read."""
        try:
            return array_of(node)
        except DataError:
            self.found.pop(node.place, None)
            raise

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names of the folders in a place, with their nodes if already known."""
        inside = self._nodes.inside(place, group)
        for node in inside.values():
            if node is not None:
                self._remember(node)
        return inside

    def kept(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return the metadata of the array at a place."""
        return read(place)

    def missing(self, place: str) -> DataError:
        """Return the error that says what is at a place instead of a node."""
        return self._nodes.missing(place)

    def _remember(self, node: Node) -> None:
        if node.place not in self.found:
            self.found[node.place] = record_of(node)


def record_of(node: Node) -> Recorded:
    """Return the record of a node."""
    attributes = node.document.get("attributes", ...) if node.zarr_format == 3 else node.attributes
    return Recorded(
        kind=node.kind,
        zarr_format=node.zarr_format,
        document=_text({key: value for key, value in node.document.items() if key not in _NOT_KEPT}),
        attributes=None if attributes is ... else _text(attributes),
        stamps=stamps_of(node.place, node.kind, node.zarr_format),
    )


def stamps_of(place: str, kind: str, zarr_format: int) -> tuple[int, int, int, int]:
    """Return size and modification time of a node's document and of its .zattrs; -1 if it does not exist."""
    if "://" in place:
        return -1, -1, -1, -1
    first = stamp_document(place, "zarr.json" if zarr_format == 3 else f".z{kind}")
    second = stamp_document(place, ".zattrs") if zarr_format == 2 else None
    return (*(first or (-1, -1))[:2], *(second or (-1, -1))[:2])


def _text(value: Mapping[str, Any] | None) -> str:
    return json.dumps(value, separators=(",", ":"))


_BATCH = 256  # places for one task of a thread


def check_stores(table: Table, node_at: Callable[[str], Node | None], *, workers: int) -> None:
    """Compare every document with the catalogue; see `Catalogue.check`.

    Args:
        table: the catalogue.
        node_at: returns the catalogue's node for a place.
        workers: threads.

    Raises:
        DataError: some have changed or do not exist any more.
    """

    def changed(rows: range) -> list[str]:
        return [table.places[row] for row in rows if _has_changed(table, row, node_at)]

    batches = [range(first, min(first + _BATCH, len(table.places))) for first in range(0, len(table.places), _BATCH)]
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        found = [place for batch in pool.map(changed, batches) for place in batch]
    if found:
        others = f" and {len(found) - 1} others" if len(found) > 1 else ""
        raise DataError(
            f"the metadata of {found[0]}{others} changed after the catalogue was made, or is missing: "
            "create it again with rankwise data index"
        )


def _has_changed(table: Table, row: int, node_at: Callable[[str], Node | None]) -> bool:
    place, kind = table.places[row], table.kinds[row]
    if "://" not in place:
        return stamps_of(place, kind[:-1], int(kind[-1])) != tuple(table.stamps[row].tolist())
    now, then = read_node(place), node_at(place)
    return now is None or then is None or record_of(now) != record_of(then)
