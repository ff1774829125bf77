"""`BoxReader`: reads many boxes of many arrays at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import BoolArray, DType, NDArray
from rankwise.data.store.boxes import BoxReport, BoxRequest, check_conversion
from rankwise.data.store.decode.kernel import is_castable
from rankwise.data.store.decode.tasks import Spread
from rankwise.data.store.execution.context import ReaderContext
from rankwise.data.store.execution.failures import warn_arrays
from rankwise.data.store.execution.reads import read_plans, spread_rows
from rankwise.data.store.files.handles import local_size, warn_few_handles
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.plan.planner import BoxPlan, make_plan
from rankwise.data.store.remote import RemoteStats
from rankwise.data.store.stats import ReaderStats
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import zarr

_ITEMSIZES = (1, 2, 4, 8)  # bytes of the elements of dense rows


class BoxReader(ReaderContext):
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


def _check_output(plan: BoxPlan, out: NDArray, wanted: tuple[int, ...] | None = None, what: str = "a plan") -> None:
    wanted = wanted or plan.request.out_shape
    if out.shape != wanted or out.dtype != plan.request.dtype or not out.flags.c_contiguous:
        raise ConfigError(
            f"{what} needs a C-contiguous output of shape {list(wanted)} and dtype {plan.request.dtype}; got "
            f"{'a' if out.flags.c_contiguous else 'a strided'} {out.dtype} of shape {list(out.shape)}"
        )
