"""`ReaderContext`: what all reads of one reader share."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.decode.choice import choose_decoder
from rankwise.data.store.decode.decoder import Scratch
from rankwise.data.store.decode.kernel import Decoder
from rankwise.data.store.execution.plan_cache import PlanCache
from rankwise.data.store.execution.slow import AdoptedArrays, SlowArrays
from rankwise.data.store.execution.threads import WorkCrew
from rankwise.data.store.files.facts import FactsCache
from rankwise.data.store.files.handles import HandleCache
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.remote import RemoteFiles, RemoteOptions
from rankwise.data.store.stats import ReaderStats, Tally

_GAP_BYTES = 16 * 2**10  # four pages: the disk reads through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2
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

    def hint(self, plans: Sequence[BoxPlan]) -> None:
        """Call ``posix_fadvise(WILLNEED)`` for the bytes of plans, with neighbours merged; skips cached chunks.

        Best effort: reports no errors.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        for plan in plans:
            self.hint([padded.plan for padded in plan.padded])
            wanted = np.flatnonzero(self.plan_cache.needed(plan))
            ranges = merge_ranges(plan.chunks.file[wanted], plan.chunks.offset[wanted], plan.chunks.length[wanted])
            for number, begin, size in np.stack(ranges, axis=1).tolist():
                facts = plan.files[number]
                if facts.is_remote:
                    continue
                try:
                    fd = self.handles.get(facts.path).fd
                    # a hint visits all pages, also where it has no effect: ten times the cost of two checks
                    if not (size > 0 and _in_memory(fd, begin) and _in_memory(fd, begin + size - 1)):
                        os.posix_fadvise(fd, begin, max(0, size), os.POSIX_FADV_WILLNEED)
                except OSError:
                    continue  # reading it will report the error

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


def _in_memory(fd: int, offset: int) -> bool:
    """Whether a byte of a file can be read without waiting for storage."""
    try:
        return bool(os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT))
    except (AttributeError, OSError):  # another system; a file system without support; or it would have to wait
        return False


def merge_ranges(file: IntArray, offset: IntArray, length: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Join byte ranges of the same file that touch or nearly touch, up to 8 MiB each.

    Args:
        file: int64[K], ascending.
        offset: int64[K], ascending in each file.
        length: int64[K].

    Returns:
        file, offset and length of the joined ranges.
    """
    if len(file) < _FEWEST_CHUNKS:
        return file, offset, length
    end = offset + length
    apart = (file[1:] != file[:-1]) | (offset[1:] - end[:-1] > _GAP_BYTES)
    apart |= end[1:] // _MOST_BYTES != end[:-1] // _MOST_BYTES
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    last = np.concatenate([first[1:], [len(file)]]) - 1
    return file[first], offset[first], end[last] - offset[first]
