"""Decoded chunks kept in memory: least recently used, capped in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from numbers import Real

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import NDArray
from rankwise.errors import ConfigError

__all__ = ["DEFAULT_CACHE_BYTES", "ChunkCache"]

DEFAULT_CACHE_BYTES = 256 * 2**20


class ChunkCache:
    """An LRU cache of arrays, capped by their bytes; thread-safe.

    What is larger than the whole cache is not kept. Arrays come back read-only, because several readers share them.
    One cache may serve several sources: its cap then holds for all of them together.

    Args:
        capacity_bytes: most bytes kept; 0 keeps nothing.

    Raises:
        ConfigError: `capacity_bytes` is negative.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if not _is_amount(capacity_bytes):
            raise ConfigError(
                f"a chunk cache wants capacity_bytes >= 0 (0 = off), a number of bytes, got {capacity_bytes!r}"
            )
        self.capacity_bytes = capacity_bytes
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Keep nothing; for processes that are forked while threads are at work."""
        # For what is kept and its bytes together: threads of all readers that share the cache meet here.
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, NDArray] = OrderedDict()
        self._kept_bytes = 0

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int]]:
        """Travel to another process as an empty cache of the same size."""
        return ChunkCache, (self.capacity_bytes,)

    @property
    def kept_bytes(self) -> int:
        """Bytes held now, never more than `capacity_bytes`."""
        return self._kept_bytes  # one look, no lock: it is out of date as soon as it is told

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._kept

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        """Return which of `keys` are kept now; touches none of them."""
        with self._lock:
            return [key in self._kept for key in keys]

    def peek(self, keys: Sequence[Hashable]) -> list[NDArray | None]:
        """Return the arrays of `keys` that are kept now, None for the others."""
        with self._lock:
            # Others may push these out at once. Decoders then still read from their addresses: whoever got an array
            # here holds it until his chunks are placed.
            held = [self._kept.get(key) for key in keys]
            for key, array in zip(keys, held, strict=True):
                if array is not None:
                    self._kept.move_to_end(key)
            return held

    def put(self, key: Hashable, array: NDArray) -> None:
        """Keep an array, which becomes read-only; replaces what was kept under `key`."""
        array.flags.writeable = False  # before others can find it
        with self._lock:
            # Two threads may have decoded the same chunk. The second replaces the first, whose readers keep it.
            old = self._kept.pop(key, None)
            self._kept_bytes -= 0 if old is None else old.nbytes
            self._keep(key, array)

    def _keep(self, key: Hashable, array: NDArray) -> None:
        if array.nbytes > self.capacity_bytes:
            return
        self._kept[key] = array
        self._kept_bytes += array.nbytes
        while self._kept_bytes > self.capacity_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.nbytes


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and float(value) >= 0
