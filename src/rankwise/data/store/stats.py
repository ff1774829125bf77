"""Counts that add up: those of a reader, and a sum over several threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar


class Summed:
    """A dataclass of numbers that add up field by field."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __add__(self, other: Self) -> Self:
        # not by dataclasses.fields(): this is called several times for each batch
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats(Summed):
    """Counts since a reader was made or its counts were reset.

    Attributes:
        boxes: boxes requested.
        failed_boxes: boxes that could not be read.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were already decoded.
        fill_chunks: chunks that are not in the store, read as the fill value.
        targets: places that chunks filled; more than chunks if boxes share some.
        read_bytes: encoded bytes read.
        decoded_bytes: bytes decoded.
        out_bytes: bytes returned.
        retries: reads that were repeated after storage errors.
        plan_s: seconds spent on planning.
        read_s: seconds spent on reading and decoding, as seen by the caller.
        decode_s: the same, summed over all threads.
    """

    boxes: int = 0
    failed_boxes: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0
    fill_chunks: int = 0
    targets: int = 0
    read_bytes: int = 0
    decoded_bytes: int = 0
    out_bytes: int = 0
    retries: int = 0
    plan_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0

    @property
    def chunks_decoded(self) -> int:
        """Number of chunks decoded by any decoder."""
        return self.fast_chunks + self.slow_chunks


StatsT = TypeVar("StatsT", bound=Summed)


class Tally(Generic[StatsT]):
    """Statistics that accumulate; thread-safe."""

    def __init__(self, zero: StatsT) -> None:
        self._lock = threading.Lock()
        # Replaced at each addition, never changed: readers need no lock, and keep the old value.
        self._zero = self.stats = zero

    def add(self, stats: StatsT) -> None:
        """Add to the counts."""
        with self._lock:  # between reading the old and writing the new, another thread's counts would be lost
            self.stats = self.stats + stats

    def reset(self) -> None:
        """Reset to the initial value."""
        with self._lock:
            self.stats = self._zero
