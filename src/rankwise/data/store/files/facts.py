"""What is known of a file before its data are read: its identity, and where the chunks of a shard lie."""

from __future__ import annotations

import math
import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.contract import IntArray
from rankwise.data.store.files.handles import identity_of
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.shard import read_index
from rankwise.errors import DataError

__all__ = ["FileBook", "FileFacts"]

_CAPACITY_BYTES = 64 * 2**20
_OVERHEAD_BYTES = 512  # of an entry without an index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileFacts:
    """One file of an array.

    Attributes:
        path: local path or URL.
        size: bytes; -1 if the file does not exist (its chunks were never written).
        identity: device, inode, size and time of change (ns) for a local file, its tag for a remote one; tells
            whether it was replaced later.
        index: int64[chunks of a shard, 2], offset and length of each, see `read_index`; None where the whole file is
            one chunk.
    """

    path: str
    size: int
    identity: tuple[object, ...]
    index: IntArray | None

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return self.size >= 0


class FileBook:
    """Looks at each file once and remembers the last ones; thread-safe.

    Files that do not exist are remembered too: an array that is written while it is read must be opened again.

    Args:
        capacity_bytes: most bytes of remembered indexes, about.
    """

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        self._capacity = capacity_bytes
        self._held: OrderedDict[tuple[int, int], FileFacts] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self.num_looked_at = 0

    def get(self, serial: int, number: int, array: ArrayMeta, coords: tuple[int, ...]) -> FileFacts:
        """Return the facts of a file.

        Args:
            serial: tells arrays apart.
            number: the file's place in the array's grid of files.
            array: the array.
            coords: coordinates of the file in that grid.

        Raises:
            DataError: the file is no file, is shorter than its index, or the index is damaged.
            OSError: it cannot be looked at.
        """
        key = (serial, number)
        with self._lock:
            facts = self._held.get(key)
            if facts is not None:
                self._held.move_to_end(key)
                return facts
        facts = _look_at(array, coords)
        with self._lock:
            self._keep(key, facts)
        return facts

    def _keep(self, key: tuple[int, int], facts: FileFacts) -> None:
        self.num_looked_at += 1
        self._held[key] = facts
        self._held_bytes += _weight(facts)
        while self._held_bytes > self._capacity and len(self._held) > 1:
            _, old = self._held.popitem(last=False)
            self._held_bytes -= _weight(old)


def _weight(facts: FileFacts) -> int:
    return _OVERHEAD_BYTES + (0 if facts.index is None else facts.index.nbytes)


def _look_at(array: ArrayMeta, coords: tuple[int, ...]) -> FileFacts:
    path = os.path.join(array.place, array.keys.key(coords))  # noqa: PTH118  (hot for arrays of many files)
    try:
        status = os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return FileFacts(path=path, size=-1, identity=(), index=None)
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} should be a chunk of an array and is no regular file")
    index = None
    if array.index is not None:
        index = read_index(Path(path), array.index).reshape(math.prod(array.index.chunks_per_shard), 2)
    return FileFacts(path=path, size=status.st_size, identity=identity_of(status), index=index)
