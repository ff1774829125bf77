"""What all runs of a reader share."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

from rankwise.data.contract import DType
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.decode import Decoder, Scratch, Spreader, choose_decoder, is_castable
from rankwise.data.store.files import HandleCache, Standing
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.reading.admission import Admission
from rankwise.data.store.reading.slow import SlowArrays
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

__all__ = ["ScratchPool", "Tools"]

_ITEMSIZES = (1, 2, 4, 8)
_LOG = logging.getLogger(__name__)


class ScratchPool:
    """Scratch memory, one for each thread that works at a time."""

    def __init__(self) -> None:
        self._free: list[Scratch] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self) -> Iterator[Scratch]:
        """Lend one."""
        with self._lock:
            scratch = self._free.pop() if self._free else Scratch()
        try:
            yield scratch
        finally:
            with self._lock:
                self._free.append(scratch)

    def clear(self) -> None:
        """Free what is not lent."""
        with self._lock:
            self._free.clear()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tools:
    """Shared by the runs of one reader; every part is thread-safe.

    Attributes:
        decoder: decodes what it knows.
        scratches: memory to decode into.
        handles: open files.
        cache: decoded chunks.
        admission: which of them are worth keeping.
        slow: arrays as zarr-python opens them.
        serial: returns a number that tells arrays apart.
        remote: returns the reader of object stores.
        trouble: returns what is wrong with an array behind a URL as a whole, when one of its objects is missing.
        standing: whether arrays and their files are what they were.
    """

    decoder: Decoder
    scratches: ScratchPool
    handles: HandleCache
    cache: ChunkCache
    admission: Admission
    slow: SlowArrays
    serial: Callable[[ArrayMeta], int]
    remote: Callable[[], RemoteFiles]
    trouble: Callable[[ArrayMeta], DataError | None]
    standing: Standing

    @classmethod
    def choose(cls, **parts: Any) -> Self:
        """Return tools with the best decoder that works here; says once when that is not the kernel."""
        decoder, why = choose_decoder()
        if why:
            _say_slower(why)
        return cls(decoder=decoder, **parts)

    @property
    def spreader(self) -> Spreader:
        """The decoder, which can place elements in dense rows: see `spreads`."""
        return cast("Spreader", self.decoder)

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Whether runs of arrays of one axis can be placed in dense rows of a dtype while they are decoded."""
        if not hasattr(self.decoder, "spread") or dtype.itemsize not in _ITEMSIZES:
            return False
        return all(
            array.ndim == 1 and array.codec.kind != "zarr" and is_castable(array.dtype, dtype, scaled=False)
            for array in arrays
        )


@functools.cache
def _say_slower(why: str) -> None:
    """Once for a process, however many readers it has."""
    _LOG.warning("chunks are decoded by threads of Python, which is slower than the compiled kernel: %s", why)
