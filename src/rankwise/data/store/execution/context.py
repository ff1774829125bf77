"""Objects that all runs of a reader share, and the reader's counts."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

from rankwise.data.contract import DType
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.decode import Decoder, Scratch, Spreader, choose_decoder, is_castable
from rankwise.data.store.execution.admission import Admission
from rankwise.data.store.execution.slow import SlowArrays
from rankwise.data.store.files import ArrayCheck, HandleCache
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.remote import RemoteFiles
from rankwise.data.store.stats import added

__all__ = ["ReaderContext", "ReaderStats", "ScratchPool"]

_ITEMSIZES = (1, 2, 4, 8)
_LOG = logging.getLogger(__name__)


class ScratchPool:
    """Scratch memory, one for each thread that works at the same time."""

    def __init__(self) -> None:
        # Not thread-locals: `clear` reaches the memory of all threads, and idle threads keep none. No lock: each
        # operation of a deque is atomic.
        self._free: deque[Scratch] = deque()

    @contextmanager
    def borrow(self) -> Iterator[Scratch]:
        """Lend a scratch."""
        try:
            scratch = self._free.pop()  # the last one used: it may still be in a CPU cache
        except IndexError:
            scratch = Scratch()
        try:
            yield scratch
        finally:
            self._free.append(scratch)

    def clear(self) -> None:
        """Free all scratches that are not lent."""
        self._free.clear()  # lent ones come back later, intact, and are lent again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReaderContext:
    """Shared by the runs of one reader; every part is thread-safe.

    Attributes:
        decoder: decodes the chunks that it supports.
        scratches: memory to decode into.
        handles: open files.
        cache: decoded chunks.
        admission: decides which of them to keep.
        slow: arrays opened with zarr-python.
        serial: returns a number that identifies an array.
        remote: the reader of object stores.
        array_check: checks whether arrays and their files have changed.
    """

    decoder: Decoder
    scratches: ScratchPool
    handles: HandleCache
    cache: ChunkCache
    admission: Admission
    slow: SlowArrays
    serial: Callable[[ArrayMeta], int]
    remote: RemoteFiles
    array_check: ArrayCheck

    @classmethod
    def choose(cls, **parts: Any) -> Self:
        """Return a context with the best decoder that works here; warn once if that is not the kernel."""
        decoder, why = choose_decoder()
        if why:
            _warn_slow_decoder(why)
        return cls(decoder=decoder, **parts)

    @property
    def spreader(self) -> Spreader:
        """The decoder, if it can place elements in dense rows: see `spreads`."""
        return cast("Spreader", self.decoder)

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Whether runs of arrays with one axis can be written to dense rows of a dtype while decoding."""
        if not hasattr(self.decoder, "spread") or dtype.itemsize not in _ITEMSIZES:
            return False
        return all(
            array.ndim == 1 and array.codec.kind != "zarr" and is_castable(array.dtype, dtype, scaled=False)
            for array in arrays
        )


@functools.cache
def _warn_slow_decoder(why: str) -> None:
    """Warn once per process, for any number of readers."""
    _LOG.warning("chunks are decoded by Python threads, which is slower than the compiled kernel: %s", why)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
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

    def __add__(self, other: ReaderStats) -> ReaderStats:
        return added(self, other)
