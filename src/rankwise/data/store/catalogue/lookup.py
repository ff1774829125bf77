"""`Catalogue`: the contents of many stores, read many in parallel and then looked up without reading them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from rankwise._files import write_whole
from rankwise.data.store.catalogue.table import RecordingNodes, Table, has_changed, pack_table, unpack_table
from rankwise.data.store.meta.nodes import Node, natural_order, node_of, resolve_place, v2_node
from rankwise.data.store.meta.parser import array_of
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.discovery import ImageRef, SearchLocation, read_location, start_location
from rankwise.data.store.ngff.images import image_of
from rankwise.errors import DataError

_BATCH = 256  # places for one task of a thread


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
        return tuple(replace(ref, nodes=self) for ref in self._table.refs)

    def arrays(self) -> tuple[str, ...]:
        """Return the places of all arrays, including levels and labels of images, sorted."""
        return tuple(
            p for p, kind in zip(self._table.places, self._table.kinds, strict=True) if kind.startswith("array")
        )

    def check(self, *, workers: int = 16) -> None:
        """Check for every metadata document whether it is still the one that was read.

        For local documents it compares size and modification time; documents behind URLs are read again.

        Args:
            workers: threads.

        Raises:
            DataError: some have changed or do not exist any more; the message names the first.
        """
        table = self._table

        def changed(rows: range) -> list[str]:
            return [table.places[row] for row in rows if has_changed(table, row, self.node)]

        parts = [range(first, min(first + _BATCH, len(table.places))) for first in range(0, len(table.places), _BATCH)]
        with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
            found = [place for part in pool.map(changed, parts) for place in part]
        if found:
            others = f" and {len(found) - 1} others" if len(found) > 1 else ""
            raise DataError(
                f"the metadata of {found[0]}{others} changed after the catalogue was made, or is missing: "
                "create it again with rankwise data index"
            )

    def node(self, place: str) -> Node | None:
        """Return the array or group at a place, None if none was found."""
        row = self._rows.get(place)
        return None if row is None else self._node(place, *self._key(row))

    def array(self, node: Node) -> ArrayMeta:
        """Return the metadata of an array from its documents, which are those of many others: parsed once."""
        row = self._rows.get(node.place)
        with suppress(DataError):  # its own documents explain it, with the place
            if row is not None:
                return replace(self._bare(*self._key(row)), place=node.place)
        return array_of(node)

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
    def _folders(self) -> dict[str, set[str]]:
        """Return for each folder the names that have nodes at or below them."""
        folders: dict[str, set[str]] = {}
        for place in self._table.places:
            parent, _, name = place.rpartition("/")
            while parent and not parent.endswith(":/") and name not in folders.setdefault(parent, set()):
                folders[parent].add(name)
                parent, _, name = parent.rpartition("/")
        return folders


_Key = tuple[int, ...]  # position in the search: number of the URI, of the child, of its child, ...


@dataclass(slots=True, kw_only=True)
class _Search:
    """A running search.

    Attributes:
        nodes: records the nodes.
        refs: the images found so far.
        bad: errors of places that could not be read.
    """

    nodes: RecordingNodes
    refs: list[tuple[_Key, ImageRef]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)

    def begin(self, uri: str) -> Sequence[SearchLocation]:
        """Return the first places to search for a URI."""
        try:
            return [start_location(uri, self.nodes)]
        except DataError as error:
            self.bad[resolve_place(uri)] = str(error)
            return []

    def examine(self, key: _Key, location: SearchLocation) -> Sequence[SearchLocation]:
        """Read a place, open the image there with its labels, and return the places below it."""
        try:
            content = read_location(location, self.nodes)
            if content.ref is not None and content.node is not None:
                image = image_of(content.node, self.nodes)
                for name in image.labels() if content.ref.kind == "image" else ():
                    try:
                        image.label(name)
                    except DataError as error:  # the image is usable without it
                        self.bad[f"{content.ref.place}/labels/{name}"] = str(error)
                self.refs.append((key, content.ref))
        except DataError as error:
            self.bad[location.ref.place] = str(error)
            return []
        return content.more


def build_catalogue(
    uris: Sequence[str | os.PathLike[str]],
    *,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
    nodes: Nodes = STORES,
) -> Catalogue:
    """Return a catalogue of every image, array, label and plate below some URIs.

    Places that cannot be read are left out; `Catalogue.bad` has the reasons.

    Args:
        uris: arrays, groups, plates, or plain folders that contain some.
        workers: threads that read; more help if storage is slow.
        progress: called with the number of images found and of places still to read.
        nodes: how to read: `StoredNodes` with your own options for URLs.

    Raises:
        MissingExtraError: a store needs zarr-python or obstore, which is not installed.
    """
    search = _Search(nodes=RecordingNodes(nodes))
    with ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="catalogue") as pool:
        try:
            _run(search, [os.fspath(uri) for uri in uris], pool, progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    refs: dict[str, ImageRef] = {}  # an image found through two URIs counts once
    for _, ref in sorted(search.refs, key=itemgetter(0)):
        refs.setdefault(ref.place, replace(ref, nodes=STORES))  # else it would keep all that was recorded in memory
    return Catalogue(
        Table.build([resolve_place(uri) for uri in uris], search.bad, search.nodes.found, list(refs.values()))
    )


def _run(
    search: _Search, uris: list[str], pool: ThreadPoolExecutor, progress: Callable[[int, int], None] | None
) -> None:
    done: SimpleQueue[tuple[_Key, Future[Sequence[SearchLocation]]]] = SimpleQueue()

    def submit(key: _Key, task: Callable[[], Sequence[SearchLocation]]) -> None:
        pool.submit(task).add_done_callback(lambda future: done.put((key, future)))

    for number, uri in enumerate(uris):
        submit((number,), partial(search.begin, uri))
    pending = len(uris)
    while pending:
        key, future = done.get()
        locations = future.result()
        for number, location in enumerate(locations):
            submit((*key, number), partial(search.examine, (*key, number), location))
        pending += len(locations) - 1
        if progress is not None:
            progress(len(search.refs), pending)
