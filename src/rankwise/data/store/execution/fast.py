"""The chunks of a plan that our own decoders support, as tables for them, slab by slab."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store.boxes import Spread
from rankwise.data.store.decode.dense_rows import DenseRows
from rankwise.data.store.decode.tasks import (
    BAD_FRAME,
    KIND_BLOSC,
    KIND_FILL,
    KIND_LZ4,
    KIND_RAW,
    KIND_ZSTD,
    OK,
    OS_ERROR,
    OUT_OF_RANGE,
    ChunkTasks,
    describe,
    is_damage,
)
from rankwise.data.store.execution.admission import PlanCache
from rankwise.data.store.execution.context import ReaderContext, ReaderStats
from rankwise.data.store.execution.failures import ChunkFailure
from rankwise.data.store.execution.inputs import NO_FILE, Fetched, open_files, start_fetch
from rankwise.data.store.execution.slabs import cut_slabs
from rankwise.data.store.files import is_temporary, retry_failed
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan

__all__ = ["FastChunks"]

States: TypeAlias = npt.NDArray[np.uint8]
_READ_BYTES = 2**16  # bytes that a thread could place during a small read
_KINDS = {"raw": KIND_RAW, "zstd": KIND_ZSTD, "blosc": KIND_BLOSC, "lz4": KIND_LZ4}


class FastChunks:
    """Chunks of one stored dtype of a plan.

    Args:
        plan: the plan.
        chosen: int64[n], which of its chunks, ascending.
        out: [B, *shape], C-contiguous.
        context: shared by all runs.
        spread: maps elements to columns of dense rows; `out` is then [B, width], and zero in rows of several
            pieces.
    """

    def __init__(
        self, plan: BoxPlan, chosen: IntArray, out: NDArray, context: ReaderContext, spread: Spread | None = None
    ) -> None:
        self._plan = plan
        self._chosen = chosen
        self._out = out
        self._context = context
        self._keeping = PlanCache(plan, chosen, context.cache, context.admission, context.serial)
        self._box, self._tasks = self._tables()
        self._dense = None if spread is None else _dense_rows(plan, spread, self._box)
        # A slab is one task. It writes its own range of the tables, its own places in `out`, its own keys of these:
        # threads need no lock for them, and decoders need no interpreter lock. All are read after the crew is done.
        self._trouble: dict[int, ChunkFailure] = {}  # position -> why no decoder could begin
        self.failed: dict[int, ChunkFailure] = {}
        # Chunks stayed unreadable for so long that others need not wait as well. Only ever set: a late reader waits
        # once more.
        self._hopeless = False
        self._lock = threading.Lock()  # for the two sums: adding is a read and a write
        self.retries = 0
        self.seconds = 0.0

    @property
    def stats(self) -> ReaderStats:
        """The counts."""
        tasks = self._tasks
        done = (tasks.status == OK) | (tasks.status == OUT_OF_RANGE)
        decoded = done & (tasks.kind != KIND_FILL) & (tasks.decoded == 0)
        expected = self._plan.chunks.offset[self._chosen] >= 0
        return ReaderStats(
            fast_chunks=int(decoded.sum()),
            cached_chunks=self._keeping.num_found,
            fill_chunks=int((done & (tasks.kind == KIND_FILL) & expected).sum()),  # missing objects
            read_bytes=int(tasks.length[decoded].sum()),
            decoded_bytes=int(self._chunk_bytes[decoded].sum()),
            retries=self.retries,
            decode_s=self.seconds,
        )

    @property
    def absent(self) -> IntArray:
        """Chunks of the plan whose objects turned out to be missing during the read."""
        absent: IntArray = self._chosen[(self._tasks.kind == KIND_FILL) & (self._plan.chunks.offset[self._chosen] >= 0)]
        return absent

    @property
    def marked(self) -> tuple[IntArray, States]:
        """Rows with marks on their columns, and the marks; a row may appear several times."""
        if self._dense is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8)
        told = np.flatnonzero(self._dense.marks)
        return self._box[told], self._dense.marks[told]

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self._chosen)

    def tasks(self, num_threads: int) -> Iterator[Callable[[], None]]:
        """Yield tasks in the order in which they should start."""
        for first, last in self.slabs(num_threads):
            yield self.task(first, last)

    def slabs(self, num_threads: int) -> list[tuple[int, int]]:
        """Return which chunks are processed together, as ``first:last``."""
        largest = max(self._plan.request.arrays[int(k)].chunk_bytes for k in np.unique(self._array))
        files = self._plan.chunks.file[self._chosen]
        return cut_slabs(files, largest, num_threads, work_bytes=self._work_bytes)

    def task(self, first: int, last: int) -> Callable[[], None]:
        """Return a task; requests its bytes behind URLs immediately."""
        # In the thread that makes the tasks: the bytes of all slabs are requested before the first slab is decoded.
        fetched = start_fetch(self._plan, self._chosen, self._tasks, self._context, first=first, last=last)
        return partial(self._run, first, last, fetched)

    @property
    def _work_bytes(self) -> int:
        """Return bytes to place and decode, with reads counted as bytes; zeros of dense rows are not placed."""
        read = (self._tasks.kind != KIND_FILL) & (self._tasks.decoded == 0)
        placed = self._out.nbytes if self._dense is None else 0
        return placed + int((self._chunk_bytes[read] + _READ_BYTES).sum())

    @property
    def _chunk_bytes(self) -> IntArray:
        sizes = np.array([meta.chunk_bytes for meta in self._plan.request.arrays], dtype=np.int64)
        by_chunk: IntArray = sizes[self._array]
        return by_chunk

    @property
    def _array(self) -> IntArray:
        return self._plan.chunks.array[self._chosen]

    def _tables(self) -> tuple[IntArray, ChunkTasks]:
        """Return the box of each target, and the tables for the decoder."""
        request, chunks = self._plan.request, self._plan.chunks
        array, num = self._array, len(self._chosen)
        kinds = np.array([_KINDS.get(meta.codec.kind, KIND_FILL) for meta in request.arrays], dtype=np.int64)
        offset = chunks.offset[self._chosen]
        dtype = request.arrays[int(array[0])].dtype
        fills = _fill_values(request.arrays, dtype)
        bounds, targets = self._targets()
        table = self._plan.targets
        box = _of(table.box, targets)
        return box, ChunkTasks(
            fd=np.full(num, NO_FILE, dtype=np.int64),
            offset=offset,
            length=chunks.length[self._chosen],
            encoded=np.zeros(num, dtype=np.int64),
            decoded=self._keeping.decoded,
            keep=np.zeros(num, dtype=np.int64),
            kind=np.where(offset < 0, KIND_FILL, kinds[array]),
            fill=fills[array],
            chunk_shape=np.array([meta.chunks for meta in request.arrays], dtype=np.int64)[array],
            bounds=bounds,
            src_start=_of(table.src_start, targets),
            extent=_of(table.extent, targets),
            dst_start=_of(table.dst_start, targets),
            dst_strides=np.cumprod((1, *request.shape[:0:-1]), dtype=np.int64)[::-1].copy(),
            scale=None if request.scale is None else request.scale[request.which[box]],
            offset_=None if request.offset is None else request.offset[request.which[box]],
        )

    def _targets(self) -> tuple[IntArray, IntArray | None]:
        """Return the bounds of the targets of the chosen chunks, and their rows in the plan's table; None = all."""
        plan_bounds = self._plan.targets.bounds
        if len(self._chosen) == len(self._plan.chunks):
            return plan_bounds, None
        sizes = np.diff(plan_bounds)[self._chosen]
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.arange(bounds[-1]) + np.repeat(plan_bounds[self._chosen] - bounds[:-1], sizes)
        return bounds, rows

    def _run(self, first: int, last: int, fetched: Fetched | None) -> None:
        started = time.perf_counter()
        buffers = self._keeping.buffers(first, last, self._tasks.keep)
        self._attempt(first, last, fetched)
        if self._tasks.status[first:last].any():
            self._retry(first, last)
        for at, buffer in buffers.items():
            # a missing object is requested again, so that it is reported again
            if int(self._chosen[at]) not in self.failed and self._tasks.kind[at] != KIND_FILL:
                self._keeping.put(at, buffer)
        with self._lock:
            self.seconds += time.perf_counter() - started

    def _attempt(self, first: int, last: int, fetched: Fetched | None) -> None:
        """Provide the bytes of chunks and decode them, once each; the tables have the results."""
        files = self._plan, self._chosen, self._tasks, self._context.handles
        held, unread = open_files(*files, first=first, last=last)
        pieces: list[object] = []
        if fetched is not None:
            pieces, lost = fetched.receive(self._tasks)
            unread |= lost
        self._decode(first, last)
        for at, failure in unread.items():
            self._refuse(at, failure)
        # The decoder has only descriptors and addresses, which keep nothing alive.
        del held, pieces  # files may be closed and bytes freed from here on, not before

    def _decode(self, first: int, last: int) -> None:
        try:
            with self._context.scratches.borrow() as scratch:
                if self._dense is None:
                    self._context.decoder.run(self._tasks, first, last, self._out, scratch)
                else:
                    self._context.spreader.spread(self._tasks, self._dense, first, last, self._out, scratch)
        except MemoryError as error:
            if last - first > 1:  # it may be one chunk of an absurd size
                for at in range(first, last):
                    self._decode(at, at + 1)
                return
            what = f"cannot be decoded: not enough memory for its {int(self._chunk_bytes[first])} bytes"
            self._refuse(first, ChunkFailure(what, damage=False, cause=error))

    def _refuse(self, at: int, failure: ChunkFailure) -> None:
        self._trouble[at] = failure
        number = failure.cause.errno if isinstance(failure.cause, OSError) else None
        self._tasks.status[at] = BAD_FRAME if number is None else OS_ERROR
        self._tasks.detail[at] = number or 0

    def _retry(self, first: int, last: int) -> None:
        """Retry chunks with temporary errors; record the errors that persist."""
        retries = 0 if self._hopeless else retry_failed(lambda: self._waiting(first, last), self._retry_chunk)
        with self._lock:
            self.retries += retries
        self._hopeless |= bool(self._waiting(first, last))
        for at in (first + np.flatnonzero(self._tasks.status[first:last])).tolist():
            self.failed[int(self._chosen[at])] = self._failure(at)

    def _waiting(self, first: int, last: int) -> list[int]:
        """Return the chunks whose errors may be temporary."""
        status, detail = self._tasks.status, self._tasks.detail
        return [at for at in range(first, last) if status[at] == OS_ERROR and is_temporary(int(detail[at]))]

    def _retry_chunk(self, at: int) -> None:
        path = self._plan.files[int(self._plan.chunks.file[self._chosen[at]])].path
        # An old handle may be stale. Threads that read from it keep it open until they are done.
        self._context.handles.forget(path)
        self._trouble.pop(at, None)
        self._attempt(at, at + 1, None)

    def _failure(self, at: int) -> ChunkFailure:
        if at in self._trouble:
            return self._trouble[at]
        tasks, status, detail = self._tasks, int(self._tasks.status[at]), int(self._tasks.detail[at])
        size = int(self._chunk_bytes[at])
        words = describe(status, detail, length=int(tasks.length[at]), chunk_bytes=size)
        cause = OSError(detail, os.strerror(detail)) if status == OS_ERROR else None
        boxes = None
        if status == OUT_OF_RANGE:
            targets = slice(int(tasks.bounds[at]), int(tasks.bounds[at + 1]))
            boxes = np.unique(self._box[targets][tasks.unfit[targets]])
        return ChunkFailure(words, damage=is_damage(status), cause=cause, boxes=boxes)


def _dense_rows(plan: BoxPlan, spread: Spread, box: IntArray) -> DenseRows:
    runs = plan.request.runs
    assert runs is not None
    marks = np.zeros(len(box), dtype=np.uint8)
    tables = plan.request.which[box] if len(spread.num_cols) > 1 else np.zeros(len(box), dtype=np.int64)
    return DenseRows(spread=spread, rows=box, lengths=runs.lengths, tables=tables, marks=marks)


def _of(column: IntArray, chosen: IntArray | None) -> IntArray:
    return column if chosen is None else column[chosen]


def _fill_values(arrays: Sequence[ArrayMeta], dtype: DType) -> NDArray:
    """Return the fill value of each array with the dtype; undefined for the others."""
    fills: NDArray = np.zeros(len(arrays), dtype=dtype)
    for which, meta in enumerate(arrays):
        if meta.dtype == dtype:
            fills[which] = meta.fill_value
    return fills
