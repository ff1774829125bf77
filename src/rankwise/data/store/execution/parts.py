"""Parts of a plan: chunks of one stored dtype, read slab by slab and placed by our own decoders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.data.store.decode.tasks import ChunkTasks, DenseRows, Spread, address_of
from rankwise.data.store.execution.context import ReaderContext
from rankwise.data.store.execution.failures import REPLACED, ChunkFailure
from rankwise.data.store.execution.threads import cut_slabs
from rankwise.data.store.files.facts import FileFacts, is_temporary, retry_failed
from rankwise.data.store.files.handles import HandleCache, OpenFile
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.data.store.remote import PendingReads, RemoteRange
from rankwise.data.store.stats import ReaderStats
from rankwise.errors import DataError

_NO_FILE = -1
_READ_BYTES = 2**16  # bytes that a thread could place during a small read
_KINDS = {
    "raw": codes.KIND_RAW, "zstd": codes.KIND_ZSTD, "blosc": codes.KIND_BLOSC, "lz4": codes.KIND_LZ4,
    "zarr": codes.KIND_DECODED,
}  # fmt: skip

# Chunks behind URLs, by position; and their bytes, requested in the same order.
_Requested: TypeAlias = tuple[IntArray, PendingReads[memoryview]]


class PlanPart:
    """Chunks of one stored dtype of a plan, all of which our own decoders decode, or zarr-python.

    Args:
        plan: the plan.
        chosen: int64[n], which of its chunks, ascending.
        out: [B, *shape], C-contiguous.
        reader: its threads, files, memory and caches are used.
        failed: receives the failures, by chunk of the plan.
        is_slow: whether zarr-python decodes them, each in a task of its own: it takes so long that nothing else counts.
        spread: maps elements to columns of dense rows; `out` is then [B, width], and zero in rows of several
            pieces.
    """

    def __init__(
        self,
        plan: BoxPlan,
        chosen: IntArray,
        out: NDArray,
        reader: ReaderContext,
        *,
        failed: dict[int, ChunkFailure],
        is_slow: bool = False,
        spread: Spread | None = None,
    ) -> None:
        self.chosen, self._is_slow = chosen, is_slow
        self._plan, self._out, self._reader, self._failed = plan, out, reader, failed
        self._array, self._file = plan.chunks.array[chosen], plan.chunks.file[chosen]
        self._chunk_bytes = np.array([meta.chunk_bytes for meta in plan.request.arrays], dtype=np.int64)[self._array]
        far = [meta.is_remote and not is_slow for meta in plan.request.arrays]  # zarr-python reads what it decodes
        self._is_far = np.array(far, dtype=np.bool_)[self._array]
        # by position: chunks in the cache, whose addresses keep nothing alive; and cache keys of chunks to keep
        self._held, self._keys = reader.plan_cache.lookup(plan, chosen)
        self._box, self._tasks = self._tables()
        self._dense: DenseRows | None = None
        if spread is not None:
            assert plan.request.runs is not None
            box, lengths, marks = self._box, plan.request.runs.lengths, np.zeros(len(self._box), dtype=np.uint8)
            tables = plan.request.which[box] if len(spread.num_cols) > 1 else np.zeros(len(box), dtype=np.int64)
            self._dense = DenseRows(spread=spread, rows=box, lengths=lengths, tables=tables, marks=marks)
        # A slab is one task. It writes its own range of the tables, its own places in `out`, its own keys of these:
        # threads need no lock for them, and decoders need no interpreter lock. All are read after the crew is done.
        self._trouble: dict[int, ChunkFailure] = {}  # by position: why no decoder could begin
        # Chunks stayed unreadable for so long that others need not wait as well. Only ever set: a late reader waits
        # once more.
        self._hopeless = False
        self._retries: list[int] = []  # threads append to both, which is atomic
        self._seconds: list[float] = []

    @property
    def absent(self) -> BoolArray:
        """Which chunks turned out to have no object behind their URL during the read, bool[n]."""
        absent: BoolArray = (self._tasks.kind == codes.KIND_FILL) & (self._plan.chunks.offset[self.chosen] >= 0)
        return absent

    @property
    def stats(self) -> ReaderStats:
        """The counts."""
        tasks = self._tasks
        done = (tasks.status == codes.OK) | (tasks.status == codes.OUT_OF_RANGE)
        decoded = done & (tasks.kind != codes.KIND_FILL)
        if self._held:
            decoded[list(self._held)] = False
        num_decoded = int(decoded.sum())
        return ReaderStats(
            fast_chunks=0 if self._is_slow else num_decoded,
            slow_chunks=num_decoded if self._is_slow else 0,
            cached_chunks=len(self._held),
            fill_chunks=int((done & self.absent).sum()),
            read_bytes=int(np.maximum(tasks.length[decoded], 0).sum()),  # -1: only zarr-python knows
            decoded_bytes=int(self._chunk_bytes[decoded].sum()),
            retries=sum(self._retries),
            decode_s=sum(self._seconds),
        )

    def mark(self, states: npt.NDArray[np.uint8]) -> None:
        """Add the decoder's marks on the columns of rows of a spread to uint8[B]."""
        assert self._dense is not None
        told = np.flatnonzero(self._dense.marks)
        np.bitwise_or.at(states, self._box[told], self._dense.marks[told])

    def slabs(self) -> list[tuple[int, int]]:
        """Return which chunks are processed together, as ``first:last``, in the order in which they should start."""
        if self._is_slow:
            return [(at, at + 1) for at in range(len(self.chosen))]
        to_read = (self._tasks.kind != codes.KIND_FILL) & (self._tasks.decoded == 0)
        placed = self._out.nbytes if self._dense is None else 0  # zeros of dense rows are not placed
        work = placed + int((self._chunk_bytes[to_read] + _READ_BYTES).sum())  # reads are counted as bytes
        num_threads = self._reader.crew.num_threads
        most_files = max(1, self._reader.handles.capacity // num_threads)  # a slab holds all of its files open
        size = int(self._chunk_bytes.max())
        return cut_slabs(self._file, size, num_threads, work_bytes=work, most_files=most_files)

    def task(self, first: int, last: int) -> Callable[[], None]:
        """Return a task; requests its bytes behind URLs immediately."""
        # In the thread that makes the tasks: the bytes of all slabs are requested before the first slab is decoded.
        requested = self._request(first, last) if self._is_far[first:last].any() else None
        return partial(self._run, first, last, requested)

    def _tables(self) -> tuple[IntArray, ChunkTasks]:
        """Return the box of each target, and the tables for the decoder."""
        request, chunks, targets = self._plan.request, self._plan.chunks, self._plan.targets
        num, offset = len(self.chosen), chunks.offset[self.chosen]
        bounds: IntArray = targets.bounds
        rows: IntArray | slice = slice(None)  # of the plan's targets
        if num < len(chunks):
            sizes = np.diff(targets.bounds)[self.chosen]
            bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            rows = np.arange(bounds[-1]) + np.repeat(targets.bounds[self.chosen] - bounds[:-1], sizes)
        box = targets.box[rows]
        kinds = np.array([_KINDS.get(meta.codec.kind, codes.KIND_FILL) for meta in request.arrays], dtype=np.int64)
        dtype = request.arrays[int(self._array[0])].dtype
        fills: NDArray = np.zeros(len(request.arrays), dtype=dtype)
        for which, meta in enumerate(request.arrays):
            if meta.dtype == dtype:  # no chunk of the others is here
                fills[which] = meta.fill_value
        decoded = np.zeros(num, dtype=np.int64)
        for at, values in self._held.items():
            decoded[at] = address_of(values)
        return box, ChunkTasks(
            fd=np.full(num, _NO_FILE, dtype=np.int64),
            offset=offset,
            length=chunks.length[self.chosen],
            encoded=np.zeros(num, dtype=np.int64),
            decoded=decoded,
            keep=np.zeros(num, dtype=np.int64),
            kind=np.where(offset < 0, codes.KIND_FILL, kinds[self._array]),
            fill=fills[self._array],
            chunk_shape=np.array([meta.chunks for meta in request.arrays], dtype=np.int64)[self._array],
            bounds=bounds,
            src_start=targets.src_start[rows],
            extent=targets.extent[rows],
            dst_start=targets.dst_start[rows],
            dst_strides=np.cumprod((1, *request.shape[:0:-1]), dtype=np.int64)[::-1].copy(),
            scale=None if request.scale is None else request.scale[request.which[box]],
            offset_=None if request.offset is None else request.offset[request.which[box]],
        )

    def _run(self, first: int, last: int, requested: _Requested | None) -> None:
        started = time.perf_counter()
        arrays, buffers = self._plan.request.arrays, dict[int, NDArray]()
        for at in range(first, last) if self._keys else ():  # only now: only slabs at work hold memory
            if at in self._keys and not self._is_slow:
                meta = arrays[int(self._array[at])]
                buffers[at] = np.empty(meta.chunks, dtype=meta.dtype)
                self._tasks.keep[at] = address_of(buffers[at])
        self._attempt(first, last, requested)
        if self._tasks.status[first:last].any():
            self._retry(first, last)
        for at, buffer in buffers.items():
            # a missing object is requested again, so that it is reported again
            if int(self.chosen[at]) not in self._failed and self._tasks.kind[at] != codes.KIND_FILL:
                self._reader.plan_cache.cache.put(self._keys[at], buffer)
        self._seconds.append(time.perf_counter() - started)

    def _attempt(self, first: int, last: int, requested: _Requested | None) -> None:
        """Provide the bytes of chunks and decode them, once each; the tables have the results."""
        unread: dict[int, ChunkFailure] = {}
        # The decoder has only descriptors and addresses, which keep nothing alive: these do, until it has ended.
        held = (self._decode_slowly if self._is_slow else self._open)(first, last, unread)
        if requested is not None:
            held += self._receive(*requested, unread)
        self._decode(first, last)
        # Emptied: the error of a file that could not be opened keeps the frame which opened the others, with their list
        held.clear()
        for at, failure in unread.items():
            self._refuse(at, failure)

    def _to_read(self, first: int, last: int, *, far: bool) -> IntArray:
        """Return the positions of chunks to read from files, or of those behind URLs."""
        tasks, part = self._tasks, slice(first, last)
        wanted = (tasks.kind[part] != codes.KIND_FILL) & (tasks.decoded[part] == 0) & (self._is_far[part] == far)
        return first + np.flatnonzero(wanted)

    def _decode_slowly(self, first: int, last: int, unread: dict[int, ChunkFailure]) -> list[object]:
        """Let zarr-python decode chunks and write their addresses to the tables; return them, add failures."""
        held: list[object] = []
        for at in self._to_read(first, last, far=False).tolist():
            meta, chunk, key = self._plan.request.arrays[int(self._array[at])], int(self.chosen[at]), self._keys.get(at)
            cache = self._reader.plan_cache.cache
            # Another read may have decoded it by now. Two may do so at once: waiting would cost more than it saves.
            values = None if key is None else cache.peek([key])[0]
            if values is not None:
                self._held[at] = values
            else:
                coords, facts = tuple(self._plan.chunks.coords[chunk].tolist()), self._plan.files[int(self._file[at])]
                found = self._reader.slow.read(self._reader.plan_cache.serial(meta), meta, coords, facts)
                if isinstance(found, ChunkFailure):
                    unread[at] = found
                    continue
                values = found
                if key is not None:
                    cache.put(key, values)
            self._tasks.decoded[at] = address_of(values)
            held.append(values)
        return held

    def _open(self, first: int, last: int, unread: dict[int, ChunkFailure]) -> list[object]:
        """Open the files of chunks and write their descriptors to the tables; return the handles, add failures."""
        held: list[object] = []
        positions = self._to_read(first, last, far=False)
        files = self._file[positions]
        for file in np.unique(files).tolist():
            members = positions[files == file]
            found = _opened(self._plan.files[file], self._reader.handles)
            if isinstance(found, OpenFile):
                self._tasks.fd[members] = found.fd
                held.append(found)
            else:
                self._tasks.fd[members] = _NO_FILE  # that of an earlier try may belong to another file by now
                unread |= dict.fromkeys(members.tolist(), found)
        return held

    def _request(self, first: int, last: int) -> _Requested:
        """Request the bytes of chunks that are behind URLs."""
        positions = self._to_read(first, last, far=True)
        ranges: list[RemoteRange] = []
        for chunk in self.chosen[positions].tolist():
            facts, length = self._plan.files[int(self._plan.chunks.file[chunk])], int(self._plan.chunks.length[chunk])
            offset = int(self._plan.chunks.offset[chunk])
            ranges.append(
                RemoteRange(url=facts.path)
                if length < 0
                else RemoteRange(url=facts.path, offset=offset, length=length, etag=facts.etag)
            )
        return positions, self._reader.remote.start(ranges)

    def _receive(
        self, positions: IntArray, pending: PendingReads[memoryview], unread: dict[int, ChunkFailure]
    ) -> list[object]:
        """Wait for bytes and write their addresses to the tables; return objects that hold them, add failures."""
        held: list[object] = []
        tasks = self._tasks
        for at, piece in zip(positions.tolist(), pending.result(), strict=True):
            if piece is None:  # no such object: a chunk that was never written, unless its whole array is missing
                tasks.kind[at] = codes.KIND_FILL
                meta = self._plan.request.arrays[int(self._array[at])]
                piece = self._reader.facts.array_check.trouble(meta)  # noqa: PLW2901
            if isinstance(piece, DataError):
                damage = bool(getattr(piece, "damage", True))
                unread[at] = ChunkFailure(f"cannot be read: {piece}".rstrip("."), damage=damage, cause=piece)
            elif piece is not None:
                encoded = np.frombuffer(piece, dtype=np.uint8)
                tasks.encoded[at], tasks.length[at] = address_of(encoded), len(encoded)
                held.append(encoded)
        return held

    def _decode(self, first: int, last: int) -> None:
        decoder = self._reader.chunk_decoder
        try:
            with self._reader.scratch() as scratch:
                if self._dense is None:
                    decoder.run(self._tasks, first, last, self._out, scratch)
                else:
                    assert isinstance(decoder, KernelDecoder)  # else `BoxReader.spreads` nothing
                    decoder.spread(self._tasks, self._dense, first, last, self._out, scratch)
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
        self._tasks.status[at] = codes.BAD_FRAME if number is None else codes.OS_ERROR
        self._tasks.detail[at] = number or 0

    def _retry(self, first: int, last: int) -> None:
        """Retry chunks with temporary errors; record the errors that persist."""
        if not self._hopeless:
            self._retries.append(retry_failed(lambda: self._waiting(first, last), self._retry_chunk))
        self._hopeless |= bool(self._waiting(first, last))
        for at in (first + np.flatnonzero(self._tasks.status[first:last])).tolist():
            self._failed[int(self.chosen[at])] = self._trouble.get(at) or self._failure(at)

    def _waiting(self, first: int, last: int) -> list[int]:
        """Return the chunks whose errors may be temporary."""
        status, detail = self._tasks.status, self._tasks.detail
        return [at for at in range(first, last) if status[at] == codes.OS_ERROR and is_temporary(int(detail[at]))]

    def _retry_chunk(self, at: int) -> None:
        # An old handle may be stale. Threads that read from it keep it open until they are done.
        self._reader.handles.discard(self._plan.files[int(self._file[at])].path)
        self._trouble.pop(at, None)
        self._attempt(at, at + 1, None)

    def _failure(self, at: int) -> ChunkFailure:
        """Return the failure that a decoder has found."""
        tasks, status, detail = self._tasks, int(self._tasks.status[at]), int(self._tasks.detail[at])
        words = codes.describe(status, detail, length=int(tasks.length[at]), chunk_bytes=int(self._chunk_bytes[at]))
        cause = OSError(detail, os.strerror(detail)) if status == codes.OS_ERROR else None
        boxes = None
        if status == codes.OUT_OF_RANGE:
            targets = slice(int(tasks.bounds[at]), int(tasks.bounds[at + 1]))
            boxes = np.unique(self._box[targets][tasks.unfit[targets]])
        return ChunkFailure(words, damage=codes.is_damage(status), cause=cause, boxes=boxes)


def _opened(facts: FileFacts, handles: HandleCache) -> OpenFile | ChunkFailure:
    try:
        handle = handles.get(facts.path)
        if handle.identity != facts.identity:  # an old handle, or another file by now
            handles.discard(facts.path)
            handle = handles.get(facts.path)
    except OSError as error:
        return ChunkFailure(f"cannot be read: its file cannot be opened: {error}", damage=False, cause=error)
    return handle if handle.identity == facts.identity else ChunkFailure(REPLACED)
