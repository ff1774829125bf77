"""One array of a Zarr store, read by ranges of axis 0. zarr-python decodes; this file checks, caches and counts."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.grid import Grid
from rankwise.data.store.presence import Found, Presence, advise
from rankwise.data.store.stats import Counters, StoreStats
from rankwise.errors import DataError

if TYPE_CHECKING:
    import zarr

__all__ = ["StoredArray"]

_WIDE_BYTES = 64 * 2**20  # a chunk that fits neither the cache nor this is never decoded as a whole
_SERIAL = itertools.count()


class StoredArray:
    """A Zarr array (version 2 or 3, sharded or not), read-only, with at least one axis.

    Samples lie along axis 0. A *chunk* here is a range of axis 0 that shares inner chunks: all the inner chunks that
    split its other axes belong to it, because each sample needs all of them. Reading is thread-safe. Metadata are
    read once: an array that is written or resized later must be opened again.

    Args:
        array: what zarr-python opened.
        place: where it lies, for messages.
        cache: where decoded chunks are kept; may be shared with other arrays.

    Raises:
        DataError: the array has no axis, or its elements are Python objects.
    """

    def __init__(self, array: zarr.Array[Any], *, place: str, cache: ChunkCache | None = None) -> None:
        if not array.shape:
            raise DataError(f"the array {place} has no axis; samples lie along axis 0")
        self._array = array
        self._serial = next(_SERIAL)
        self._counters = Counters()
        self.cache = ChunkCache() if cache is None else cache
        self.place = place
        self.dtype = _plain_dtype(array, place)
        self.grid = Grid(shape=array.shape, chunks=array.chunks, shards=array.shards)
        self._presence = _presence(array, self.grid)
        self.fingerprint = self._hash()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process: the store is opened again there, and nothing decoded comes along."""
        return _rebuild, (self._array, self.place, self.cache)

    def __repr__(self) -> str:
        return f"StoredArray({self.place!r}, shape={self.shape}, dtype={self.dtype}, chunks={self.grid.chunks})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.grid.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded row."""
        return self.grid.row_items * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk."""
        return self.row_bytes * min(self.grid.chunk_rows, max(1, len(self)))

    @property
    def stats(self) -> StoreStats:
        """What has been read through this object."""
        return self._counters.stats

    def is_cached(self, chunk: int) -> bool:
        """Return whether a chunk is decoded already, or just being decoded."""
        return (self._serial, chunk) in self.cache

    def find(self, chunk: int) -> Found | None:
        """Return where the bytes of a chunk lie; None for a store that is not a local folder.

        Raises:
            DataError: a shard's index is damaged or points past the end of the file, a file cannot be looked at, or
                the array as a whole has gone.
        """
        return None if self._presence is None else self._presence.find(chunk)

    def hint(self, chunk: int) -> None:
        """Ask the system to read the bytes of a chunk soon. Best effort; does nothing for a chunk that is cached."""
        if self._presence is None or self.is_cached(chunk):
            return
        try:
            advise(self._presence.find(chunk).ranges)
        except DataError:
            return  # reading the chunk says it, with its samples

    def read_chunk(self, chunk: int) -> tuple[NDArray, StoreStats]:
        """Return a whole decoded chunk, [rows, *shape[1:]], and what this call read.

        The array is read-only, and other readers may hold it too.

        Args:
            chunk: 0 <= chunk < grid.num_chunks.

        Raises:
            DataError: its bytes are damaged or cannot be read.
            IndexError: there is no such chunk.
        """
        if not 0 <= chunk < self.grid.num_chunks:
            raise IndexError(f"{self.place} has {self.grid.num_chunks} chunks along axis 0, asked for chunk {chunk}")
        read: list[StoreStats] = []

        def load() -> NDArray:
            decoded, stats = self._decode(chunk, None)
            read.append(stats)
            return decoded

        decoded, _ = self.cache.get((self._serial, chunk), load)
        if not read:
            read.append(StoreStats(cache_hits=1))
            self._counters.add(read[0])
        return decoded, read[0]

    def read_rows(self, chunk: int, rows: IntArray) -> tuple[NDArray, StoreStats]:
        """Return rows of one chunk, [len(rows), *shape[1:]], and what this call read.

        A chunk too wide to keep (more than the cache and 64 MiB) is not decoded as a whole: zarr-python picks the
        rows while it decodes, so that memory stays bounded by the rows asked for.

        Args:
            chunk: the chunk that holds them all.
            rows: int64[B], indices along axis 0 of the array.

        Raises:
            DataError: its bytes are damaged or cannot be read.
        """
        if self.chunk_bytes > max(self.cache.capacity_bytes, _WIDE_BYTES):
            wanted, back = np.unique(rows, return_inverse=True)
            picked, stats = self._decode(chunk, wanted)
            return picked[back], stats
        decoded, stats = self.read_chunk(chunk)
        local = rows - chunk * self.grid.chunk_rows
        if np.array_equal(local, np.arange(len(decoded))):
            return decoded, stats  # the whole chunk in order: no copy
        return decoded[local], stats

    def _decode(self, chunk: int, rows: IntArray | None) -> tuple[NDArray, StoreStats]:
        found = self.find(chunk)
        first, stop = self.grid.rows(chunk)
        decoded = self._zarr_rows(chunk, slice(first, stop) if rows is None else rows)
        stats = StoreStats(
            chunks_decoded=1,
            fill_chunks=found.num_missing if found else 0,
            read_bytes=found.num_bytes if found else 0,
            decoded_bytes=decoded.nbytes,
        )
        self._counters.add(stats)
        return decoded, stats

    def _zarr_rows(self, chunk: int, rows: slice | IntArray) -> NDArray:
        try:
            picked = self._array[rows] if isinstance(rows, slice) else self._array.oindex[rows]
            return np.asarray(picked).astype(self.dtype, copy=False)
        except MemoryError:
            raise
        except Exception as error:  # whatever a codec or store raises
            first, stop = self.grid.rows(chunk)
            raise DataError(
                f"chunk {chunk} (rows {first} to {stop - 1}) of the array {self.place} could not be read or decoded: "
                f"{type(error).__name__}: {str(error).rstrip('.')}. Its bytes are damaged or unreadable; copy or write "
                "the store again"
            ) from error

    def _hash(self) -> str:
        """Shape, dtype, grid, and how many bytes the first and the last file have: equal for a copy elsewhere."""
        sizes = []
        if self.shape[0] and self.grid.row_items:
            last = tuple((n - 1) // f for n, f in zip(self.shape, self.grid.files, strict=True))
            sizes = [_stored_bytes(self._array, coords) for coords in ((0,) * len(last), last)]
        facts = [self.shape, self.dtype.str, self.grid.chunks, self.grid.shards, sizes]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _rebuild(array: zarr.Array[Any], place: str, cache: ChunkCache) -> StoredArray:
    return StoredArray(array, place=place, cache=cache)


def _plain_dtype(array: zarr.Array[Any], place: str) -> DType:
    """Native byte order; refuses what a batch cannot hold."""
    dtype = np.dtype(array.dtype)
    if dtype.hasobject or dtype.kind in "OT":
        raise DataError(
            f"the array {place} has dtype {array.dtype}: strings of variable length and objects cannot form a batch; "
            "store numbers (or codes and a list of categories), or leave it out with fields="
        )
    return dtype.newbyteorder("=")


def _presence(array: zarr.Array[Any], grid: Grid) -> Presence | None:
    """How to look at the files; None where the array is not a plain folder of this machine or its index is exotic."""
    from zarr.storage import LocalStore

    from rankwise.data.store.shard import IndexLayout

    if not isinstance(array.store, LocalStore):
        return None
    layout = IndexLayout.from_metadata(array.metadata.to_dict())
    if grid.shards is not None and layout is None:
        return None
    return Presence(array.store.root / array.path, grid, layout, key=array.metadata.encode_chunk_key)


def _stored_bytes(array: zarr.Array[Any], coords: tuple[int, ...]) -> int:
    """Encoded size of one file of the array, -1 if it was never written."""
    from zarr.core.sync import sync

    key = "/".join(part for part in (array.path, array.metadata.encode_chunk_key(coords)) if part)
    try:
        return int(sync(array.store.getsize(key)))
    except (FileNotFoundError, KeyError):
        return -1
