"""Whether arrays behind URLs are still there: their missing objects are the fill value only then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.remote import RemoteFiles, TransferError
from rankwise.errors import DataError

__all__ = ["Standing"]


class Standing:
    """Asks for the metadata of an array once, when the first of its objects is missing; thread-safe.

    Args:
        remote: returns the reader of object stores.
    """

    def __init__(self, remote: Callable[[], RemoteFiles]) -> None:
        self._remote = remote
        self._known: dict[str, DataError | None] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Ask again."""
        with self._lock:
            self._known.clear()

    def trouble(self, array: ArrayMeta) -> DataError | None:
        """Return what is wrong with an array as a whole, None if it is there. Trouble that may pass is not kept."""
        with self._lock:
            if array.place in self._known:
                return self._known[array.place]
        url = f"{array.place}/{'zarr.json' if array.zarr_format == 3 else '.zarray'}"
        try:
            found = self._remote().size(url)
        except DataError as error:
            return error
        gone = f"the array {array.place} has gone since it was opened (moved or deleted): bring it back, open it anew"
        answer = None if found is not None else TransferError(gone, url=url)
        with self._lock:
            self._known[array.place] = answer
        return answer
