"""Counters of what a store has read; added to by several threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Counters", "StoreStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What an array or a source has read since it was opened.

    Attributes:
        chunks_decoded: chunks (all inner chunks of one range of axis 0 count as one) that were read and decoded.
        cache_hits: chunks that were wanted and already decoded.
        fill_chunks: inner chunks that are not in the store and stand for the fill value.
        read_bytes: encoded bytes of the decoded chunks, as far as metadata tell (local stores).
        decoded_bytes: bytes after decoding.
    """

    chunks_decoded: int = 0
    cache_hits: int = 0
    fill_chunks: int = 0
    read_bytes: int = 0
    decoded_bytes: int = 0

    def __add__(self, other: StoreStats) -> StoreStats:
        return StoreStats(
            chunks_decoded=self.chunks_decoded + other.chunks_decoded,
            cache_hits=self.cache_hits + other.cache_hits,
            fill_chunks=self.fill_chunks + other.fill_chunks,
            read_bytes=self.read_bytes + other.read_bytes,
            decoded_bytes=self.decoded_bytes + other.decoded_bytes,
        )


class Counters:
    """A `StoreStats` that grows; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = StoreStats()

    def add(self, stats: StoreStats) -> None:
        """Add to the counts."""
        with self._lock:
            self._stats = self._stats + stats

    @property
    def stats(self) -> StoreStats:
        """The counts so far."""
        return self._stats
