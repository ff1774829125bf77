"""An LRU cache of decoded chunks, limited in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from numbers import Real

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import NDArray
from rankwise.errors import ConfigError

DEFAULT_CACHE_BYTES = 256 * 2**20


class ChunkCache:
    """An LRU cache of arrays, limited by their bytes; thread-safe.

    An array larger than the whole cache is not kept. Arrays become read-only, because several readers share them.
    One cache may serve several sources: its limit then applies to all of them together.

    Args:
        capacity_bytes: most bytes kept; 0 keeps nothing.

    Raises:
        ConfigError: `capacity_bytes` is negative.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if not (isinstance(capacity_bytes, Real) and float(capacity_bytes) >= 0):
            raise ConfigError(
                f"a chunk cache needs capacity_bytes >= 0 (0 = off), a number of bytes, got {capacity_bytes!r}"
            )
        self.capacity_bytes: int = capacity_bytes
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Drop everything; for processes that are forked while threads run."""
        # Guards entries and byte count; threads of all readers that share the cache take it.
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, NDArray] = OrderedDict()
        self._kept_bytes = 0

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int]]:
        """Pickle as an empty cache of the same size."""
        return ChunkCache, (self.capacity_bytes,)

    @property
    def kept_bytes(self) -> int:
        """Bytes in use, never more than `capacity_bytes`."""
        return self._kept_bytes  # a single read needs no lock: the number is outdated once returned

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._kept

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        """Return which of `keys` are in the cache now, without marking them as used."""
        with self._lock:
            return list(map(self._kept.__contains__, keys))

    def peek(self, keys: Sequence[Hashable]) -> list[NDArray | None]:
        """Return the arrays of `keys` in the cache, None for the others."""
        with self._lock:
            # Other threads may evict these at once, while decoders still read from their addresses: the caller must
            # hold a returned array until its chunks are placed.
            held = list(map(self._kept.get, keys))
            for key, array in zip(keys, held, strict=True):
                if array is not None:
                    self._kept.move_to_end(key)
            return held

    def put(self, key: Hashable, array: NDArray) -> None:
        """Keep an array, which becomes read-only; replaces the entry of `key`."""
        array.flags.writeable = False  # before other threads can find it
        with self._lock:
            # Two threads may decode the same chunk. The second replaces the first; readers of the first keep it alive.
            old = self._kept.pop(key, None)
            self._kept_bytes -= 0 if old is None else old.nbytes
            if array.nbytes > self.capacity_bytes:
                return
            self._kept[key] = array
            self._kept_bytes += array.nbytes
            while self._kept_bytes > self.capacity_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.nbytes
