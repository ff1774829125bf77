"""`BoxReader`: reads many boxes of many arrays at once."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import BoolArray, DType, IntArray, NDArray, whole_number
from rankwise.data.store.boxes import BoxReport, BoxRequest, check_conversion
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache, PlanCache
from rankwise.data.store.decode.choice import choose_decoder
from rankwise.data.store.decode.decoder import Scratch
from rankwise.data.store.decode.kernel import Decoder, is_castable
from rankwise.data.store.decode.tasks import Spread
from rankwise.data.store.execution.failures import warn_arrays
from rankwise.data.store.execution.reads import read_plans, spread_rows
from rankwise.data.store.execution.slow import AdoptedArrays, SlowArrays
from rankwise.data.store.execution.threads import WorkCrew, reading_threads
from rankwise.data.store.files.facts import FactsCache
from rankwise.data.store.files.handles import HandleCache, local_size, warn_few_handles
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.plan.planner import BoxPlan, make_plan
from rankwise.data.store.remote import RemoteFiles, RemoteOptions, RemoteStats
from rankwise.data.store.stats import ReaderStats, Tally
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import zarr

Keep: TypeAlias = Literal["repeats", "all"]
_ITEMSIZES = (1, 2, 4, 8)  # bytes of the elements of dense rows
_GAP_BYTES = 16 * 2**10  # four pages: the disk reads through smaller gaps anyway
_MOST_BYTES = 8 * 2**20  # of one hint
_FEWEST_CHUNKS = 2
_LOG = logging.getLogger(__name__)


class BoxReader:
    """Plans and reads requests; thread-safe. In another process, also after a fork, it reopens everything.

    Each chunk of a plan is read and decoded once, directly into the places that it fills, by several threads without
    the interpreter's lock. Decoded chunks that are needed again are cached.

    Args:
        cache: bytes of decoded chunks to keep in memory (0 = none), or a `ChunkCache` that several readers share.
        threads: threads that read and decode; None = the cores that this rank may use, shared with the other ranks of
            the machine, and among the workers of a DataLoader.
        max_open_files: files to keep open; None = half of what the process may open.
        max_indexes: number of files whose shard index (or size) is remembered; None = 64 MiB of them.
        remote: options for object stores.
        keep: which decoded chunks to cache: "repeats" = those that are needed again, which suits a global shuffle;
            "all" = every chunk at its first use, for an order that is known to return soon.

    Raises:
        ConfigError: `threads`, `max_open_files` or `max_indexes` is below 1, or `keep` is invalid.
    """

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
        return partial(BoxReader, **self._arguments), (), self._adopted

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

    @property
    def max_open_files(self) -> int:
        """Number of files to keep open."""
        return self.handles.capacity

    def warn_few_handles(self, wanted: int, *, local_ranks: int) -> None:
        """Warn if each of some ranks of a machine reads from more files at a time than its reader keeps open."""
        warn_few_handles(wanted=wanted, capacity=self.max_open_files, local_ranks=local_ranks)

    @property
    def remote_stats(self) -> RemoteStats:
        """Counts of requests to object stores so far."""
        return self.remote.stats

    @property
    def file_lookups(self) -> tuple[int, int]:
        """How many look-ups of a file's shard index (or size) were answered from memory, and how many were read."""
        return self.facts.num_recalled, self.facts.num_looked_at

    def reset_stats(self) -> None:
        """Reset the counts."""
        self.counters.reset()

    def adopt(self, array: zarr.Array[Any]) -> ArrayMeta:
        """Return the metadata of an array opened with zarr-python, for requests to this reader.

        An array in a folder is read like any other. An array in another store (memory, a ZIP file, a file system of
        fsspec) is decoded by zarr-python; its missing chunks are read as the fill value without being counted.

        Raises:
            DataError: the array cannot form batches, or its metadata are invalid.
        """
        return self._adopted.adopt(array)

    def stored_bytes(self, array: ArrayMeta, coords: tuple[int, ...]) -> int:
        """Return the size of one file of an array, -1 if it was never written.

        Args:
            array: the array.
            coords: coordinates of the file in its grid of files.

        Raises:
            DataError: its size cannot be read.
        """
        key = array.keys.key(coords)
        if self._adopted.get(array.place) is not None:
            return self._adopted.stored_bytes(array.place, key)
        if array.is_remote:
            found = self.remote.size(f"{array.place}/{key}")
            return -1 if found is None else found[0]
        return local_size(f"{array.place}/{key}")

    def plan(self, request: BoxRequest, *, like: BoxPlan | None = None) -> BoxPlan:
        """Return the plan for a request; reads facts of files and shard indexes, not data.

        Args:
            request: the request.
            like: a plan for the same `which`, `starts` and `runs` of other arrays, which may save some work.

        Raises:
            ConfigError: elements cannot be converted as requested.
        """
        started, retries = time.perf_counter(), self.facts.num_retries
        scaled = request.scale is not None
        for array in request.arrays:
            if scaled or array.dtype != request.dtype:
                check_conversion(array.dtype, request.dtype, scaled=scaled, place=array.place)
        warn_arrays(request)
        plan = make_plan(request, self.facts, like=like)
        seconds = time.perf_counter() - started
        self.counters.add(ReaderStats(plan_s=seconds, retries=self.facts.num_retries - retries))
        return plan

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

    def needed(self, plan: BoxPlan) -> BoolArray:
        """Return which chunks of a plan would now have to be read and decoded, bool[K]."""
        return self.plan_cache.needed(plan)

    def costs(self, plans: Iterable[BoxPlan]) -> dict[str, int]:
        """Return the `num_chunks`, `read_bytes` and `decode_bytes` of a `Plan`: what reading would take now."""
        num_chunks = read_bytes = decode_bytes = 0
        for plan in plans:
            needed = self.plan_cache.needed(plan)
            sizes = np.array([array.chunk_bytes for array in plan.request.arrays], dtype=np.int64)
            num_chunks += int(needed.sum())
            read_bytes += int(np.maximum(plan.chunks.length[needed], 0).sum())
            decode_bytes += int(sizes[plan.chunks.array[needed]].sum())
        return {"num_chunks": num_chunks, "read_bytes": read_bytes, "decode_bytes": decode_bytes}

    def read(self, jobs: Sequence[tuple[BoxPlan, NDArray]]) -> tuple[BoxReport, ...]:
        """Read plans, each into its own array; return one report for each.

        Errors of a box are in its report and do not affect the other boxes.

        Args:
            jobs: plans of this reader, each with a C-contiguous array of the requested dtype, of the shape
                [B, *shape], or [num_rows, *shape[1:]] for runs.

        Raises:
            ConfigError: an array has another shape or dtype, or is not contiguous.
        """
        for plan, out in jobs:
            _check_output(plan, out)
        return read_plans(jobs, self)

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Return whether `spread` supports runs of these arrays with one axis, as elements of a dtype."""
        if self.chunk_decoder.name != "kernel" or dtype.itemsize not in _ITEMSIZES:
            return False
        return all(
            array.ndim == 1 and array.codec.kind != "zarr" and is_castable(array.dtype, dtype, scaled=False)
            for array in arrays
        )

    def spread(
        self, plans: tuple[BoxPlan, BoxPlan], out: NDArray, spread: Spread
    ) -> tuple[tuple[BoxReport, BoxReport], NDArray]:
        """Read sparse rows into dense ones: each element is written to its column while decoding; all others are zero.

        Args:
            plans: of the elements, one run for each row, of arrays that `spreads` supports; and of their columns,
                with the same runs.
            out: [B, spread.width], C-contiguous, of the requested dtype; it is overwritten completely.
            spread: targets of columns, and memory for them.

        Returns:
            The reports; and uint8[B], `OUTSIDE` if a row has an invalid column number, which is skipped,
                `TWICE` if it has a column twice, of which only one element was written.

        Raises:
            ConfigError: `out` or the memory for columns has another shape or dtype, or is not contiguous.
        """
        request = plans[0].request
        _check_output(plans[0], out, (len(request), spread.width), "a plan for dense rows")
        if len(spread.num_cols) not in (1, len(request.arrays)):
            raise ConfigError(f"places must be the same for all arrays, or one for each of {len(request.arrays)}")
        _check_output(plans[1], spread.columns)
        return spread_rows(plans, out, spread, self)

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


def _check_output(plan: BoxPlan, out: NDArray, wanted: tuple[int, ...] | None = None, what: str = "a plan") -> None:
    wanted = wanted or plan.request.out_shape
    if out.shape != wanted or out.dtype != plan.request.dtype or not out.flags.c_contiguous:
        raise ConfigError(
            f"{what} needs a C-contiguous output of shape {list(wanted)} and dtype {plan.request.dtype}; got "
            f"{'a' if out.flags.c_contiguous else 'a strided'} {out.dtype} of shape {list(out.shape)}"
        )


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
