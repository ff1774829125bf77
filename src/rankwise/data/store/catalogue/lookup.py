"""`Catalogue`: the contents of many stores, looked up without reading them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Self

from rankwise._files import write_whole
from rankwise.data.store.catalogue.table import Table, check_stores, pack_table, unpack_table
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import Node, natural_order, node_of, v2_node
from rankwise.data.store.meta.parser import array_of
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.discovery import ImageRef
from rankwise.errors import DataError


class Catalogue:
    """Arrays, groups and images of many stores, as of the time of building.

    Functions that open something accept it as ``nodes=``: ``read_meta(place, nodes=catalogue)``, `open_image`,
    `list_arrays`, `open_plate`. `build_catalogue` or `rankwise data index` makes it.

    Args:
        table: its columns.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows = {place: row for row, place in enumerate(table.places)}
        # Many arrays have equal documents, so parsing each distinct one once costs almost nothing.
        self._parsed = lru_cache(maxsize=4096)(lambda number: json.loads(table.texts[number]))
        self._bare = lru_cache(maxsize=4096)(lambda *key: array_of(self._node("", *key)))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False, workers: int = 16) -> Self:
        """Return the catalogue in a file.

        Args:
            path: the file.
            verify: check for every metadata document whether it has changed since (`check`).
            workers: threads for the check.

        Raises:
            DataError: there is no such file, it is damaged, or (with `verify`) outdated.
        """
        try:
            packed = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"the catalogue {path} cannot be read: {error.strerror}") from error
        catalogue = cls(unpack_table(packed, str(path)))
        if verify:
            catalogue.check(workers=workers)
        return catalogue

    @classmethod
    def from_bytes(cls, packed: bytes) -> Self:
        """Return the catalogue from the bytes of `to_bytes`.

        Raises:
            DataError: the bytes are damaged.
        """
        return cls(unpack_table(packed, "that arrived as bytes"))

    def to_bytes(self) -> bytes:
        """Return it as bytes, for sending to other ranks."""
        return pack_table(self._table)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write it to a file atomically; return the number of bytes.

        Raises:
            DataError: the file cannot be written.
        """
        target, content = Path(path).expanduser(), self.to_bytes()
        try:
            write_whole(target, content)
        except OSError as error:
            raise DataError(f"{target} cannot be written: {error.strerror}") from error
        return len(content)

    def __reduce__(self) -> tuple[Callable[[bytes], Catalogue], tuple[bytes]]:
        return Catalogue.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"Catalogue({len(self)} images, {len(self.arrays())} arrays)"

    def __len__(self) -> int:
        """Number of images."""
        return len(self._table.refs)

    def __contains__(self, uri: object) -> bool:
        return isinstance(uri, str | os.PathLike) and resolve_place(uri) in self._rows

    @property
    def roots(self) -> tuple[str, ...]:
        """The URIs that were searched."""
        return tuple(self._table.roots)

    @property
    def bad(self) -> dict[str, str]:
        """Errors of places that could not be read."""
        return dict(self._table.bad)

    def images(self) -> tuple[ImageRef, ...]:
        """Return the images in the order of `iter_images`."""
        return self._images

    def arrays(self) -> tuple[str, ...]:
        """Return the places of all arrays, including levels and labels of images, sorted."""
        return self._arrays

    def check(self, *, workers: int = 16) -> None:
        """Check for every metadata document whether it is still the one that was read.

        For local documents it compares size and modification time; documents behind URLs are read again.

        Args:
            workers: threads.

        Raises:
            DataError: some have changed or do not exist any more; the message names the first.
        """
        check_stores(self._table, self.node, workers=workers)

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place, None if none was found."""
        row = self._rows.get(place)
        return None if row is None else self._node(place, *self._key(row))

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents."""
        return self.kept(node.place, lambda _: array_of(node))

    def kept(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return the metadata of an array; if there is no valid array, `read` raises the error that explains it."""
        row = self._rows.get(place)
        if row is None or not self._table.kinds[row].startswith("array"):
            return read(place)
        try:
            return replace(self._bare(*self._key(row)), place=place)
        except DataError:
            return array_of(self._node(place, *self._key(row)))

    def inside(self, place: str, group: Node | None) -> dict[str, Node | None]:
        """Return the names in a place that have nodes at or below them, in natural order."""
        del group
        return dict.fromkeys(sorted(self._folders.get(place, ()), key=natural_order))

    def missing(self, place: str) -> DataError:
        """Return the error that explains why a place is not in the catalogue."""
        if place in self.bad:
            return DataError(f"{place} could not be read when the catalogue was made: {self.bad[place]}")
        roots = ", ".join(self.roots[:4]) + (", ..." if len(self.roots) > 4 else "")
        return DataError(f"{place} is not in the catalogue, which was made from {roots or 'nothing'}")

    def _key(self, row: int) -> tuple[str, int, int]:
        return self._table.kinds[row], int(self._table.documents[row]), int(self._table.attributes[row])

    def _node(self, place: str, kind: str, document: int, attributes: int) -> Node:
        found = self._parsed(document)
        own = {} if attributes < 0 else self._parsed(attributes)
        if kind[-1] == "2":
            return v2_node(place, f".z{kind[:-1]}", found, own)
        return node_of(place, {**found, "attributes": own} if attributes >= 0 else found)

    @cached_property
    def _images(self) -> tuple[ImageRef, ...]:
        return tuple(replace(ref, nodes=self) for ref in self._table.refs)

    @cached_property
    def _arrays(self) -> tuple[str, ...]:
        kinds = zip(self._table.places, self._table.kinds, strict=True)
        return tuple(place for place, kind in kinds if kind.startswith("array"))

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        """Return for each folder the names that have nodes at or below them."""
        folders: dict[str, set[str]] = {}
        for place in self._table.places:
            parent, _, name = place.rpartition("/")
            while parent and not parent.endswith(":/") and name not in folders.setdefault(parent, set()):
                folders[parent].add(name)
                parent, _, name = parent.rpartition("/")
        return folders
