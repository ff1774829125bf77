"""Our reader without a loader, and the floor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from _rows.readers import Reader
from _rows.task import Task
from rankwise.data.feed.memory.csr import scipy_csr
from rankwise.data.feed.memory.pool import MemoryPool, allocate_bytes
from rankwise.data.rows.fields.row_field import RowField, read_fields
from rankwise.data.rows.matrices.matrix import open_matrix
from rankwise.data.rows.matrices.stacks import MatrixPlan, stack_matrices
from rankwise.data.store import BoxPlan, BoxReader


class Ours(Reader):
    """Requests read as a whole into buffers that the next one takes again; batches are parts of them, not copied."""

    def __init__(self, task: Task, output: str = "rows") -> None:
        self._task = task
        self._reader = BoxReader(cache=0, threads=task.threads)
        self._stack = stack_matrices([open_matrix(f"{task.store}/X", self._reader)])
        columns = [task.columns()] if output == "genes" else None
        self._field = RowField(self._stack, dense=output == "dense", columns=columns)
        self._memory = MemoryPool()
        self._held: dict[str, np.ndarray] = {}

    def plan(self, number: int) -> MatrixPlan:
        """Return how a request is read."""
        return self._field.plan(self._task.rows(number), self._reader)

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for number in numbers:
            plan = self.plan(number)
            arrays = self._arrays(plan)
            done = read_fields({"X": self._field}, {"X": plan}, {"X": arrays}, self._reader, self._memory)["X"]
            for report in done.reports:
                if not report.valid.all():
                    raise report.errors[0].error
            if done.outside is not None:
                raise RuntimeError("rows name columns that there are not")
            for cut in self._task.cuts():
                yield self._batch(arrays, cut)

    def close(self) -> None:
        """Close files and threads."""
        self._reader.close()

    def _arrays(self, plan: MatrixPlan) -> tuple[np.ndarray, ...]:
        spec = self._field.spec
        if not spec.ragged:
            return (self._buffer("rows", (plan.num_rows, *spec.shape), spec.dtype),)
        return (
            self._buffer("data", (plan.num_elements,), spec.dtype),
            self._buffer("indices", (plan.num_elements,), self._stack.spec.index_dtype),
            self._buffer("indptr", (plan.num_rows + 1,), self._stack.spec.index_dtype),
        )

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        count = math.prod(shape)
        held = self._held.get(name)
        if held is None or len(held) < count:
            memory = allocate_bytes((count + count // 10) * np.dtype(dtype).itemsize, pinned=False)  # as loaders do
            held = self._held[name] = memory.view(dtype)
        return held[:count].reshape(shape)

    def _batch(self, arrays: tuple[np.ndarray, ...], cut: slice) -> Any:
        if len(arrays) == 1:
            return arrays[0][cut]
        data, indices, indptr = arrays
        bounds = indptr[cut.start : cut.stop + 1]
        part = slice(bounds[0], bounds[-1])
        return scipy_csr((data[part], indices[part], bounds - bounds[0]), self._field.spec.shape[0])


class Floor(Reader):
    """Decodes every chunk that our reader touches once, out of memory, and does nothing with the elements."""

    def __init__(self, task: Task) -> None:
        from numcodecs import Blosc, blosc

        blosc.use_threads = False
        self._decode = Blosc(cname="lz4").decode
        self._ours = Ours(task)
        self._ready: dict[int, list[tuple[list[np.ndarray], np.ndarray]]] = {}

    def prepare(self, numbers: Iterable[int]) -> None:
        """Plan requests and read their chunks, before the clock starts."""
        self._ready = {
            number: [(_encoded(box), _scratch(box)) for box in self._ours.plan(number).boxes] for number in numbers
        }

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield nothing."""
        for number in numbers:
            for encoded, scratch in self._ready[number]:
                for chunk in encoded:
                    self._decode(chunk, scratch)
        yield from ()

    def close(self) -> None:
        """Close the planner's files."""
        self._ours.close()


def _scratch(box: BoxPlan) -> np.ndarray:
    scratch = np.empty(box.request.arrays[0].chunk_bytes, dtype=np.uint8)
    scratch[:] = 0  # its pages are there before the clock starts
    return scratch


def _encoded(box: BoxPlan) -> list[np.ndarray]:
    """Return the encoded bytes of all chunks of a plan."""
    chunks = box.chunks
    if (chunks.offset < 0).any() or (chunks.length < 0).any():
        raise RuntimeError("the floor expects every chunk to be in the store")
    handles = [os.open(file.path, os.O_RDONLY) for file in box.files]
    places = zip(chunks.file.tolist(), chunks.offset.tolist(), chunks.length.tolist(), strict=True)
    found = [np.frombuffer(os.pread(handles[file], length, offset), np.uint8) for file, offset, length in places]
    for handle in handles:
        os.close(handle)
    return found
