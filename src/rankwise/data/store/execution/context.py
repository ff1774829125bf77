"""`ReaderContext`: what all plans and reads of one reader share."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import IntArray, whole_number
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache, PlanCache
from rankwise.data.store.decode.choice import choose_decoder
from rankwise.data.store.decode.decoder import Scratch
from rankwise.data.store.decode.kernel import Decoder
from rankwise.data.store.execution.slow import AdoptedArrays, SlowArrays
from rankwise.data.store.execution.threads import WorkCrew, reading_threads
from rankwise.data.store.files.facts import FactsCache
from rankwise.data.store.files.handles import HandleCache
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.remote import RemoteFiles, RemoteOptions
from rankwise.data.store.stats import ReaderStats, Tally
from rankwise.errors import ConfigError

Keep: TypeAlias = Literal["repeats", "all"]
_GAP_BYTES = 16 * 2**10  # four pages: the disk reads through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2
_LOG = logging.getLogger(__name__)


class ReaderContext:
    """Threads, open files, memory, caches and counts of one `BoxReader`; every part is thread-safe."""

    def __init__(
        self,
        *,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        max_open_files: int | None = None,
        max_indexes: int | None = None,
        remote: RemoteOptions | None = None,
        keep: Keep = "repeats",
    ) -> None:
        limits = {"threads": threads, "max_open_files": max_open_files, "max_indexes": max_indexes}
        for name, value in limits.items():
            if value is not None:
                whole_number(f"{name} of a reader", value, least=1)
        if keep not in get_args(Keep):
            raise ConfigError(f"keep must be one of {', '.join(get_args(Keep))}, got {keep!r}")
        self.cache = cache if isinstance(cache, ChunkCache) else ChunkCache(cache)
        self.num_threads = reading_threads() if threads is None else threads
        self._arguments: dict[str, Any] = {
            "cache": self.cache, "threads": threads, "max_open_files": max_open_files, "remote": remote,
            "keep": keep, "max_indexes": max_indexes,
        }  # fmt: skip
        self._adopted = AdoptedArrays()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start with nothing open and all counts zero; for processes that are forked while threads run."""
        # All that has locks, threads or open files is recreated. The table of adopted arrays is valid after every step
        # of a change, and a child keeps it: its arrays could not be opened again.
        given = self._arguments
        self.crew = WorkCrew(self.num_threads, shared=given["threads"] is None)
        self.counters = Tally(ReaderStats())
        self.remote = RemoteFiles(given["remote"])
        self.plan_cache = PlanCache(self.cache, everything=given["keep"] == "all")
        self.facts = FactsCache(self.remote, self.plan_cache.serial, most_files=given["max_indexes"])
        self.handles = HandleCache(given["max_open_files"])
        self.slow = SlowArrays(self.remote, self._adopted, self.facts.array_check)
        # One for each thread that works at the same time. Not thread-locals: `close` reaches the memory of all threads,
        # and idle threads keep none. No lock: each operation of a deque is atomic.
        self._scratches: deque[Scratch] = deque()
        self._chosen: Decoder | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments), (), self._adopted

    def __setstate__(self, adopted: AdoptedArrays) -> None:
        self._adopted = adopted
        self.renew()

    @property
    def stats(self) -> ReaderStats:
        """Counts of what was done so far."""
        return self.counters.stats

    @property
    def decoder(self) -> str:
        """The decoder in use: "kernel", or "threads" if the kernel cannot be used."""
        return self.chunk_decoder.name

    @property
    def chunk_decoder(self) -> Decoder:
        """The best decoder that works here, chosen at first use; warns once if that is not the kernel."""
        if self._chosen is None:  # threads that meet here wait for each other inside, and get the same one
            self._chosen, why = choose_decoder()
            if why:
                _warn_slow_decoder(why)
        return self._chosen

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
        """Ask the system to read the bytes of plans soon, neighbours together. Best effort; skips cached chunks."""
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
        """Close threads and files, and free scratch memory. Planning and reading again reopen everything."""
        # Stores first, so that crew threads waiting for them return; then the crew, which is joined; then what its
        # threads have used. A read that another thread begins meanwhile reopens what it needs.
        self.remote.close()
        self.crew.close()
        self.handles.close()
        self._scratches.clear()  # those in use come back later, intact, and are used again
        self.facts.clear()
        self.plan_cache.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
