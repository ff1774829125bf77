"""Builds a catalogue: reads every place below some URIs, many in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from queue import SimpleQueue

from rankwise.data.store.catalogue.lookup import Catalogue
from rankwise.data.store.catalogue.table import RecordingNodes, Table
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.tree import STORES, Nodes
from rankwise.data.store.ngff.discovery import ImageRef, SearchLocation, read_location, start_location
from rankwise.data.store.ngff.images import image_of
from rankwise.errors import DataError

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
                self._open(content.ref, content.node)
                self.refs.append((key, content.ref))
        except DataError as error:
            self.bad[location.ref.place] = str(error)
            return []
        return content.more

    def _open(self, ref: ImageRef, node: Node) -> None:
        image = image_of(node, self.nodes)
        for name in image.labels() if ref.kind == "image" else ():
            try:
                image.label(name)
            except DataError as error:  # the image is usable without it
                self.bad[f"{ref.place}/labels/{name}"] = str(error)


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
