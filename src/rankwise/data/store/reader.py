"""`BoxReader`: reads many boxes of many arrays at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import BoolArray, DType, NDArray
from rankwise.data.store.adoption import AdoptedArrays
from rankwise.data.store.boxes import BoxReport, BoxRequest, Spread, check_conversion
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.execution import (
    Admission,
    Executor,
    ReaderContext,
    ReaderStats,
    ScratchPool,
    Serials,
    SlowArrays,
    WorkCrew,
    chunk_keys,
    reading_threads,
    warn_lossy_conversions,
    warn_slow_arrays,
)
from rankwise.data.store.execution.inputs import advise_plans
from rankwise.data.store.files import FactsCache, HandleCache, local_size
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan, make_plan
from rankwise.data.store.remote import RemoteFiles, RemoteOptions, RemoteStats
from rankwise.data.store.stats import Tally
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import zarr

__all__ = ["BoxReader", "Keep"]

Keep: TypeAlias = Literal["repeats", "all"]


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
            if value is not None and not (isinstance(value, Integral) and value >= 1):
                raise ConfigError(f"a reader needs {name} of at least 1, got {value!r}")
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
        self._remote = RemoteFiles(self._arguments["remote"])
        self._serials = Serials()
        self._book = FactsCache(self._remote, self._serials.of, most_files=self._arguments["max_indexes"])
        self._handles = HandleCache(self._arguments["max_open_files"])
        self._counters = Tally(ReaderStats())
        self._admission = Admission(self.cache.capacity_bytes, everything=self._arguments["keep"] == "all")
        self._crew = WorkCrew(self.num_threads, shared=self._arguments["threads"] is None)
        self._scratches = ScratchPool()
        self._executor: Executor | None = None
        self._lock = threading.Lock()  # for `_executor` alone: the other parts have their own

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(BoxReader, **self._arguments), (), self._adopted

    def __setstate__(self, adopted: AdoptedArrays) -> None:
        self._adopted = adopted

    @property
    def stats(self) -> ReaderStats:
        """Counts of what was done so far."""
        return self._counters.stats

    @property
    def decoder(self) -> str:
        """The decoder in use: "kernel", or "threads" if the kernel cannot be used."""
        return self._execution().decoder_name

    @property
    def max_open_files(self) -> int:
        """Number of files to keep open."""
        return self._handles.capacity

    @property
    def remote_stats(self) -> RemoteStats:
        """Counts of requests to object stores so far."""
        return self._remote.stats

    @property
    def file_lookups(self) -> tuple[int, int]:
        """How many look-ups of a file's shard index (or size) were answered from memory, and how many were read."""
        return self._book.num_recalled, self._book.num_looked_at

    def reset_stats(self) -> None:
        """Reset the counts."""
        self._counters.reset()

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
            found = self._remote.size(f"{array.place}/{key}")
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
        started, retries = time.perf_counter(), self._book.num_retries
        for array in request.arrays:
            check_conversion(array.dtype, request.dtype, scaled=request.scale is not None, place=array.place)
        warn_slow_arrays(request.arrays)
        warn_lossy_conversions(request)
        plan = make_plan(request, self._book, like=like)
        self._counters.add(ReaderStats(plan_s=time.perf_counter() - started, retries=self._book.num_retries - retries))
        return plan

    def hint(self, plans: Sequence[BoxPlan]) -> None:
        """Ask the system to read the bytes of plans soon. Best effort; skips cached chunks."""
        advise_plans(plans, self._handles, kept=self._kept if len(self.cache) else None)

    def needed(self, plan: BoxPlan) -> BoolArray:
        """Return which chunks of a plan would now have to be read and decoded, bool[K]."""
        needed: BoolArray = plan.chunks.offset >= 0
        return needed & ~self._kept(plan) if len(self.cache) else needed

    def read(self, jobs: Sequence[tuple[BoxPlan, NDArray]]) -> tuple[BoxReport, ...]:
        """Read plans, each into its own array; return one report for each.

        Errors of a box are in its report and do not affect the other boxes.

        Args:
            jobs: plans of this reader, each with a C-contiguous array of the requested dtype, of the shape
                [B, *shape], or [num_rows, *shape[1:]] for runs.

        Raises:
            ConfigError: an array has another shape or dtype, or is not contiguous.
        """
        started = time.perf_counter()
        for plan, out in jobs:
            _check_output(plan, out)
        reports, stats = self._execution().run(jobs)
        # once per call, by the calling thread: the crew counts for itself, and never waits for this lock
        self._counters.add(
            stats
            + ReaderStats(
                boxes=sum(len(plan.request) for plan, _ in jobs),
                failed_boxes=sum(len(report.errors) for report in reports),
                out_bytes=sum(out.nbytes for _, out in jobs),
                read_s=time.perf_counter() - started,
            )
        )
        return reports

    def spreads(self, arrays: Sequence[ArrayMeta], dtype: DType) -> bool:
        """Return whether `spread` supports runs of these arrays with one axis, as elements of a dtype."""
        return self._execution().spreads(arrays, dtype)

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
        started = time.perf_counter()
        request = plans[0].request
        _check_output(plans[0], out, (len(request), spread.width), "a plan for dense rows")
        if len(spread.num_cols) not in (1, len(request.arrays)):
            raise ConfigError(f"places must be the same for all arrays, or one for each of {len(request.arrays)}")
        _check_output(plans[1], spread.columns)
        reports, states, stats = self._execution().spread(plans, out, spread)
        done = ReaderStats(
            boxes=len(plans) * len(request), failed_boxes=sum(len(report.errors) for report in reports),
            out_bytes=out.nbytes + spread.columns.nbytes, read_s=time.perf_counter() - started,
        )  # fmt: skip
        self._counters.add(stats + done)
        return reports, states

    def close(self) -> None:
        """Close threads and files, and free scratch memory. Planning and reading again reopen everything."""
        # Stores first, so that crew threads waiting for them return; then the crew, which is joined; then what its
        # threads have used. A read that another thread begins meanwhile reopens what it needs.
        self._remote.close()
        self._crew.close()
        self._handles.close()
        self._scratches.clear()
        self._book.forget()
        self._serials.forget()  # cache entries of files that were replaced meanwhile must not be found again
        self._admission.forget()  # it knows arrays by those numbers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _kept(self, plan: BoxPlan) -> BoolArray:
        """Return which chunks of a plan are in the cache, bool[K]."""
        chunks, kept = plan.chunks, np.zeros(len(plan.chunks), dtype=np.bool_)
        for which in np.unique(chunks.array).tolist():
            places = np.flatnonzero(chunks.array == which)
            keys = chunk_keys(self._serials.of(plan.request.arrays[which]), chunks.number[places])
            kept[places] = self.cache.holds(keys)
        return kept

    def _execution(self) -> Executor:
        """Return the executor, made on first use: choosing a decoder compiles or loads the kernel."""
        # Held while the kernel is loaded or compiled: other threads need it, too, and would repeat the work.
        # `forks_wait` is taken inside; a thread that holds that one never takes a reader's lock.
        with self._lock:
            if self._executor is None:
                array_check = self._book.array_check
                context = ReaderContext.choose(
                    scratches=self._scratches,
                    handles=self._handles,
                    cache=self.cache,
                    admission=self._admission,
                    slow=SlowArrays(self._remote, self._adopted, array_check),
                    serial=self._serials.of,
                    remote=self._remote,
                    array_check=array_check,
                )
                self._executor = Executor(context, self._crew)
            return self._executor


def _check_output(plan: BoxPlan, out: NDArray, wanted: tuple[int, ...] | None = None, what: str = "a plan") -> None:
    wanted = wanted or plan.request.out_shape
    if out.shape != wanted or out.dtype != plan.request.dtype or not out.flags.c_contiguous:
        raise ConfigError(
            f"{what} needs a C-contiguous output of shape {list(wanted)} and dtype {plan.request.dtype}; got "
            f"{'a' if out.flags.c_contiguous else 'a strided'} {out.dtype} of shape {list(out.shape)}"
        )
