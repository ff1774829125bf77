"""Turns the documents of one array into an `ArrayMeta`, cached until the documents change."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from rankwise._process.forks import renew_in_children
from rankwise.data.store.meta.codecs import UnreadableError
from rankwise.data.store.meta.documents import Stamp, stamp_document
from rankwise.data.store.meta.nodes import Node
from rankwise.data.store.meta.parser import parse_array
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError


def array_of(node: Node) -> ArrayMeta:
    """Return the metadata of an array from its documents.

    Raises:
        DataError: they are not understood, or the array cannot form batches.
        MissingExtraError: they need zarr-python, which is not installed.
    """
    try:
        meta = parse_array(node.document, node.attributes, zarr_format=node.zarr_format)
    except UnreadableError as error:
        name = ".zarray" if node.zarr_format == 2 else "zarr.json"
        raise DataError(f"the array {node.place} cannot be read with its {name}: {error}") from error
    return replace(meta, place=node.place)


_FRESH_NS = 50_000_000  # file systems count time in ticks: a file may change twice within one and keep its stamp
_REMOTE_NS = 60 * 10**9  # remote documents cannot be checked for free, so cached ones expire


_NAMES = ("zarr.json", ".zarray", ".zattrs")

_Stamps = tuple[Stamp | None, ...]


class MetaCache:
    """Caches the last `capacity` arrays by place; thread-safe.

    The documents of a local array are checked each time (one stat call in version 3, three in version 2); a
    remote one is read again after a minute.
    """

    def __init__(self, capacity: int = 4096, clock: Callable[[], int] = time.time_ns) -> None:
        self._capacity = capacity
        self._clock = clock
        self._kept: OrderedDict[str, tuple[ArrayMeta, _Stamps, int]] = OrderedDict()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make a new lock; for processes that are forked while threads run."""
        # entries may stay: each step of a change is atomic, and leaves them valid
        self._lock = threading.Lock()

    def get(self, place: str, read: Callable[[str], ArrayMeta]) -> ArrayMeta:
        """Return the metadata of an array, from memory if they are still valid."""
        with self._lock:  # not while documents are read: two threads may read the same ones, and keep equal results
            kept = self._kept.get(place)
        if kept is not None:
            meta, stamps, read_at = kept
            if self._clock() - read_at < _REMOTE_NS if "://" in place else _stamps(place) == stamps:
                return meta
        # Stamps from before and after: if another process writes in between, the result is returned but not kept.
        began, before = self._clock(), _stamps(place)
        meta = read(place)
        if before == _stamps(place) and all(stamp is None or stamp[1] < began - _FRESH_NS for stamp in before):
            with self._lock:
                self._kept[place] = meta, before, began
                self._kept.move_to_end(place)
                if len(self._kept) > self._capacity:
                    self._kept.popitem(last=False)
        return meta


def _stamps(place: str) -> _Stamps:
    """Return the stamps of the documents that matter; only zarr.json if it exists."""
    if "://" in place:
        return ()
    first = stamp_document(place, _NAMES[0])
    return (first,) if first is not None else (None, *(stamp_document(place, name) for name in _NAMES[1:]))
