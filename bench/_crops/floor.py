"""The floor: the compiled loop decodes and casts the needed chunks from memory; nothing is planned or read."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from _crops.readers import Rankwise, Reader
from _crops.task import Task

_SLAB = 8  # chunks that a thread takes at a time
_KINDS = {"raw": 0, "zstd": 1, "blosc": 2, "lz4": 3}


class Floor(Reader):
    """Decodes and casts what our own reader would, on the same threads, without reading and planning."""

    def __init__(self, task: Task) -> None:
        from rankwise.data.store.decode.choice import choose_decoder
        from rankwise.data.store.decode.decoder import Scratch

        self._plans = Rankwise(task)
        self._decoder, why = choose_decoder()
        if self._decoder.name != "kernel":
            raise RuntimeError(f"the floor needs compiled decoders: {why}")
        self._scratch = [Scratch() for _ in range(task.threads)]
        self._out = task.empty()
        self._ready: dict[int, Any] = {}

    def prepare(self, numbers: Iterable[int]) -> None:
        """Plan batches and read their bytes, before the clock starts."""
        self._ready = {}
        for number, plan in zip(numbers, self._plans.plans(numbers), strict=True):
            self._ready[number] = _tasks(plan, self._out)

    def batches(self, numbers: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield batches."""
        for number in numbers:
            tasks, _ = self._ready[number]
            slabs = itertools.count(0, _SLAB)  # next() on it is atomic
            threads = [threading.Thread(target=self._work, args=(tasks, slabs, own)) for own in self._scratch[1:]]
            for thread in threads:
                thread.start()
            self._work(tasks, slabs, self._scratch[0])
            for thread in threads:
                thread.join()
            if tasks.status.any():
                raise RuntimeError(f"chunks of batch {number} could not be decoded: {set(tasks.status.tolist())}")
            yield self._out

    def close(self) -> None:
        """Close the planner's files."""
        self._plans.close()

    def _work(self, tasks: Any, slabs: Iterator[int], scratch: Any) -> None:
        num_chunks = len(tasks.kind)
        while (first := next(slabs)) < num_chunks:
            self._decoder.run(tasks, first, min(first + _SLAB, num_chunks), self._out, scratch)


def _tasks(plan: Any, out: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return decoding tasks for a plan, and the memory that their encoded bytes lie in."""
    from rankwise.data.store.decode.tasks import ChunkTasks

    chunks, targets, arrays = plan.chunks, plan.targets, plan.request.arrays
    if (chunks.offset < 0).any():
        raise RuntimeError("the floor expects every chunk to be in the store")
    memory, begins = _read(plan)
    nothing = np.zeros(len(chunks), dtype=np.int64)
    tasks = ChunkTasks(
        fd=nothing - 1,
        offset=nothing,
        length=chunks.length,
        encoded=memory.ctypes.data + begins,
        decoded=nothing,
        keep=nothing,
        kind=np.array([_KINDS[array.codec.kind] for array in arrays], dtype=np.int64)[chunks.array],
        fill=np.array([array.fill_value for array in arrays], dtype=arrays[0].dtype)[chunks.array],
        chunk_shape=np.array([array.chunks for array in arrays], dtype=np.int64)[chunks.array],
        bounds=targets.bounds,
        src_start=targets.src_start,
        extent=targets.extent,
        dst_start=targets.dst_start,
        dst_strides=np.array(out.strides[1:], dtype=np.int64) // out.itemsize,
        scale=None,
        offset_=None,
    )
    return tasks, memory


def _read(plan: Any) -> tuple[np.ndarray, np.ndarray]:
    """Read the encoded bytes of all chunks into one array; return it and where each chunk begins."""
    chunks = plan.chunks
    begins = np.cumsum(chunks.length) - chunks.length
    memory = np.empty(int(chunks.length.sum()), dtype=np.uint8)
    handles = [os.open(file.path, os.O_RDONLY) for file in plan.files]
    rows = zip(chunks.file.tolist(), chunks.offset.tolist(), chunks.length.tolist(), begins.tolist(), strict=True)
    for file, offset, length, begin in rows:
        if os.preadv(handles[file], [memory[begin : begin + length]], offset) != length:
            raise RuntimeError(f"{plan.files[file].path} is shorter than its index says")
    for handle in handles:
        os.close(handle)
    return memory, begins
