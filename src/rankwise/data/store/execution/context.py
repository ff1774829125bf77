"""`ReaderContext`: what all reads of one reader share."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rankwise.data.contract import DType
from rankwise.data.store.adoption import AdoptedArrays
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.decode import Decoder, Scratch, choose_decoder, is_castable
from rankwise.data.store.execution.plan_cache import PlanCache
from rankwise.data.store.execution.slow import SlowArrays
from rankwise.data.store.execution.threads import WorkCrew
from rankwise.data.store.files import FactsCache, HandleCache
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.remote import RemoteFiles, RemoteOptions
from rankwise.data.store.stats import ReaderStats, Tally

_ITEMSIZES = (1, 2, 4, 8)
_LOG = logging.getLogger(__name__)


class ReaderContext:
    """Threads, open files, memory, caches and counts of one reader; every part is thread-safe.

    Args:
        adopted: arrays in zarr-python's own stores.
        num_threads: threads that read and decode.
        cache: decoded chunks; this and the others are as `BoxReader` was given them.
    """

    def __init__(
        self,
        adopted: AdoptedArrays,
        num_threads: int,
        *,
        cache: ChunkCache,
        threads: int | None,
        max_open_files: int | None,
        max_indexes: int | None,
        remote: RemoteOptions | None,
        keep: str,
    ) -> None:
        self.crew = WorkCrew(num_threads, shared=threads is None)
        self.counters = Tally(ReaderStats())
        self.remote = RemoteFiles(remote)
        self.plan_cache = PlanCache(cache, everything=keep == "all")
        self.facts = FactsCache(self.remote, self.plan_cache.serial, most_files=max_indexes)
        self.handles = HandleCache(max_open_files)
        self.slow = SlowArrays(self.remote, adopted, self.facts.array_check)
        # One for each thread that works at the same time. Not thread-locals: `close` reaches the memory of all threads,
        # and idle threads keep none. No lock: each operation of a deque is atomic.
        self._scratches: deque[Scratch] = deque()
        self._decoder: Decoder | None = None

    @property
    def decoder(self) -> Decoder:
        """The best decoder that works here, chosen at first use; warns once if that is not the kernel."""
        if self._decoder is None:  # threads that meet here wait for each other inside, and get the same one
            self._decoder, why = choose_decoder()
            if why:
                _warn_slow_decoder(why)
        return self._decoder

    @contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """Lend memory to decode into."""
        try:
            scratch = self._scratches.pop()  # the last one used: it may still be in a CPU cache
        except IndexError:
            scratch = Scratch()
        try:
            yield scratch
        finally:
            self._scratches.append(scratch)

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Whether runs of arrays with one axis can be written to dense rows of a dtype while decoding."""
        if not hasattr(self.decoder, "spread") or dtype.itemsize not in _ITEMSIZES:
            return False
        return all(
            array.ndim == 1 and array.codec.kind != "zarr" and is_castable(array.dtype, dtype, scaled=False)
            for array in arrays
        )

    def close(self) -> None:
        """Close threads and files, and free scratch memory; everything reopens on use."""
        # Stores first, so that crew threads waiting for them return; then the crew, which is joined; then what its
        # threads have used. A read that another thread begins meanwhile reopens what it needs.
        self.remote.close()
        self.crew.close()
        self.handles.close()
        self._scratches.clear()  # those in use come back later, intact, and are used again
        self.facts.clear()
        self.plan_cache.clear()


@functools.cache
def _warn_slow_decoder(why: str) -> None:
    """Warn once per process, for any number of readers."""
    _LOG.warning("chunks are decoded by Python threads, which is slower than the compiled kernel: %s", why)
