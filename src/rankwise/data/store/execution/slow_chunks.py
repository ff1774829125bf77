"""The chunks of a plan that only zarr-python decodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.boxes import converted
from rankwise.data.store.execution.context import ReaderContext, ReaderStats
from rankwise.data.store.execution.failures import REPLACED, ChunkFailure
from rankwise.data.store.execution.slabs import chunk_keys
from rankwise.data.store.files import is_temporary, local_identity, retry_failed
from rankwise.data.store.plan import BoxPlan
from rankwise.errors import DataError

__all__ = ["SlowChunks"]

_UNFIT = "holds values that do not fit the requested dtype: choose a wider dtype"
_NO_MEMORY = "cannot be decoded: there is not enough memory"


class SlowChunks:
    """Chunks that zarr-python decodes one by one, and NumPy copies to their places."""

    def __init__(self, plan: BoxPlan, chosen: IntArray, out: NDArray, context: ReaderContext) -> None:
        self._plan = plan
        self._chosen = chosen
        self._out = out
        self._context = context
        # Each chunk is one task, so no key has two writers, and the crew has ended before the keys are read. The same
        # holds for `out`: no place in it belongs to two chunks.
        self.failed: dict[int, ChunkFailure] = {}
        self._lock = threading.Lock()  # for the counts: adding is a read and a write
        self._hopeless = False  # a chunk stayed unreadable for so long that the others need not wait as well
        self.stats = ReaderStats()

    def tasks(self, _num_threads: int) -> Iterator[Callable[[], None]]:
        """Yield one task for each chunk."""
        for chunk in self._chosen.tolist():
            yield partial(self._run, chunk)

    def _run(self, chunk: int) -> None:
        started = time.perf_counter()
        try:
            values, cached = self._decoded(chunk)
        except (DataError, OSError, MemoryError) as error:
            self.failed[chunk] = _failure(error)
            return
        unfit = self._scatter(chunk, values)
        if unfit:
            self.failed[chunk] = ChunkFailure(_UNFIT, damage=False, boxes=np.array(unfit, dtype=np.int64))
        done = ReaderStats(
            slow_chunks=int(not cached),
            cached_chunks=int(cached),
            read_bytes=0 if cached else max(0, int(self._plan.chunks.length[chunk])),
            decoded_bytes=0 if cached else values.nbytes,
            decode_s=time.perf_counter() - started,
        )
        with self._lock:
            self.stats += done

    def _decoded(self, chunk: int) -> tuple[NDArray, bool]:
        """Return the values of a chunk, and whether they were in the cache."""
        table = self._plan.chunks
        meta = self._plan.request.arrays[int(table.array[chunk])]
        serial = self._context.serial(meta)
        (key,) = chunk_keys(serial, table.number[chunk : chunk + 1])
        (held,) = self._context.cache.peek([key])
        if held is not None:
            return held, True
        coords = tuple(table.coords[chunk].tolist())
        # Two reads may decode the same chunk at once: waiting for each other would cost more than it saves.
        values = self._decode_with_retries(lambda: self._context.slow.chunk(serial, meta, coords))
        self._refuse_changed(chunk)
        if self._context.cache.capacity_bytes and self._plan.request.keep:  # slow to decode: keep each at first use
            values = np.ascontiguousarray(values)
            self._context.cache.put(key, values)
        return values, False

    def _decode_with_retries(self, decode: Callable[[], NDArray]) -> NDArray:
        got: NDArray | OSError = OSError()

        def attempt(_: int = 0) -> None:
            nonlocal got
            try:
                got = decode()
            except OSError as error:
                got = error

        attempt()
        retries = retry_failed(lambda: [0] if is_temporary(got) and not self._hopeless else [], attempt)
        with self._lock:
            self.stats += ReaderStats(retries=retries)
        if isinstance(got, OSError):
            self._hopeless |= is_temporary(got)  # only ever set: a thread that sees it late has paused once in vain
            raise got
        return got

    def _refuse_changed(self, chunk: int) -> None:
        """Raise if zarr-python may have opened another file than planned; it reads a missing one as fill values."""
        facts = self._plan.files[int(self._plan.chunks.file[chunk])]
        if not facts.is_remote and local_identity(facts.path) != facts.identity:
            raise DataError(REPLACED)

    def _scatter(self, chunk: int, values: NDArray) -> list[int]:
        """Copy values to their places; return the boxes whose dtype they do not fit."""
        unfit: list[int] = []
        request, targets = self._plan.request, self._plan.targets
        which = int(self._plan.chunks.array[chunk])
        scale = None if request.scale is None else float(request.scale[which])
        offset = None if request.offset is None else float(request.offset[which])
        one_box = request.runs is None  # else boxes are rows of one array
        for at in range(int(targets.bounds[chunk]), int(targets.bounds[chunk + 1])):
            box = int(targets.box[at])
            extent = targets.extent[at].tolist()
            begin = np.unravel_index(int(targets.dst_start[at]), request.out_shape)
            reach = (1, *extent) if one_box else extent
            into = tuple(slice(int(low), int(low) + n) for low, n in zip(begin, reach, strict=True))
            taken = tuple(slice(low, low + n) for low, n in zip(targets.src_start[at].tolist(), extent, strict=True))
            place = request.arrays[which].place
            try:
                self._out[into] = converted(values[taken], request.dtype, scale=scale, offset=offset, place=place)
            except DataError:
                unfit.append(box)
        return unfit


def _failure(error: DataError | OSError | MemoryError) -> ChunkFailure:
    if isinstance(error, MemoryError):
        return ChunkFailure(_NO_MEMORY, damage=False, cause=error)
    words = str(error).rstrip(".") if isinstance(error, DataError) else f"cannot be read: {error}"
    damage = bool(getattr(error, "damage", isinstance(error, DataError)))
    return ChunkFailure(words, damage=damage, cause=error)
