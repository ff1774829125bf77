"""Whether arrays are still what they were when they were opened: there, and of the same metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rankwise.data.store.meta import ArrayMeta, read_meta
from rankwise.data.store.meta.documents import Stamp, stamp_document
from rankwise.data.store.remote import RemoteFiles, TransferError
from rankwise.errors import DataError

__all__ = ["Standing"]


_MOST_STAMPS = 2**16
LOOK_AGAIN_S = 0.5
_V3 = 3


class Standing:
    """Looks at the metadata of arrays again; thread-safe.

    Behind a URL it asks once, when the first of an array's objects is missing: missing objects are the fill value only
    where the array is there. On local disks it asks the system, at each read, whether the document was written since.

    Args:
        remote: returns the reader of object stores.
    """

    def __init__(self, remote: Callable[[], RemoteFiles]) -> None:
        self._remote = remote
        self._known: dict[str, DataError | None] = {}
        self._stamps: dict[str, Stamp | None] = {}
        self._looked_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Ask again."""
        with self._lock:
            self._known.clear()
            self._stamps.clear()
            self._looked_s.clear()

    def is_due(self, path: str, now_s: float) -> bool:
        """Return whether a file of one chunk should be looked at again, and count it as looked at if so.

        It is whole, old or new, whenever it was read, and loaders read ahead by more than this: asking the system about
        every file of every batch would cost a tenth where chunks are small and kept decoded.
        """
        if now_s - self._looked_s.get(path, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return False
        if len(self._looked_s) >= _MOST_STAMPS:
            self._looked_s.clear()
        self._looked_s[path] = now_s
        return True

    def suspect(self, path: str) -> None:
        """Look at a file that has changed at every read from now on: it must not pass for what it was in between."""
        self._looked_s.pop(path, None)

    def changed(self, array: ArrayMeta) -> DataError | None:
        """Return what is wrong with a local array that was resized, replaced or removed since its first read."""
        name = "zarr.json" if array.zarr_format == _V3 else ".zarray"
        stamp = stamp_document(array.place, name)
        with self._lock:
            if self._stamps.setdefault(array.place, stamp) == stamp:
                if len(self._stamps) > _MOST_STAMPS:
                    del self._stamps[next(iter(self._stamps))]
                return None
        try:
            now = read_meta(array.place)
        except DataError as error:
            return DataError(f"belongs to an array that has gone or cannot be opened any more: {error}")
        if now.fingerprint != array.fingerprint:
            return DataError(
                f"belongs to an array that was written anew or resized since it was opened (shape {array.shape} then, "
                f"{now.shape} now): open it anew, and do not write to it while it is read"
            )
        with self._lock:  # attributes do not matter
            self._stamps[array.place] = stamp
        return None

    def trouble(self, array: ArrayMeta) -> DataError | None:
        """Return what is wrong with an array as a whole, None if it is there. Trouble that may pass is not kept."""
        with self._lock:
            if array.place in self._known:
                return self._known[array.place]
        url = f"{array.place}/{'zarr.json' if array.zarr_format == _V3 else '.zarray'}"
        try:
            found = self._remote().size(url)
        except DataError as error:
            return error
        gone = f"the array {array.place} has gone since it was opened (moved or deleted): bring it back, open it anew"
        answer = None if found is not None else TransferError(gone, url=url)
        with self._lock:
            self._known[array.place] = answer
        return answer
