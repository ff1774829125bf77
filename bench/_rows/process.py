"""A process for one program: it reads on request and returns the cost."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from _common.worker import Worker, serve, timed

from _rows.readers import KINDS, Reader, open_reader
from _rows.task import Task

BLOCKED = "RANKWISE_BENCH_BLOCKED"  # a package that a process is to be without
UNAIDED = "zarrs"


class ReaderProcess(Worker):
    """Starts the process of a program; a context manager.

    Args:
        program: its name.
        python: the interpreter.
    """

    def __init__(self, program: str, python: str) -> None:
        environment = {BLOCKED: UNAIDED} if program == "unaided" else None
        super().__init__(program, "_rows.process", python=python, environment=environment)

    def round(
        self,
        name: str,
        task: Task,
        first: int,
        count: int,
        *,
        digest: bool = False,
        step_s: float = 0.0,
        early_s: float = 0.0,
    ) -> dict[str, Any]:
        """Read requests, or epochs, ``first .. first + count - 1`` with a step of `step_s` after each batch.

        With `early_s` a loader begins to read so long before the clock starts.

        Returns:
            What they cost, and how long the steps took together; or their digest.
        """
        return self.ask(
            name=name, task=task.to_json(), first=first, count=count, digest=digest, step_s=step_s, early_s=early_s
        )


def main() -> None:
    """Read what is asked for until nothing more is."""
    if BLOCKED in os.environ:
        sys.modules[os.environ[BLOCKED]] = None  # type: ignore[assignment]  # importing it is now an ImportError
    opened = _Opened()

    def answer(
        *, name: str, task: str, first: int, count: int, digest: bool, step_s: float, early_s: float
    ) -> dict[str, Any]:
        numbers, reader = range(first, first + count), opened.reader(name, task)
        reader.prepare(numbers)
        if digest:
            found = whole_digest if KINDS[name].is_epoch else batch_digests
            return {"digest": found(reader, numbers)}
        if early_s:
            reader.begin_early(first)
            time.sleep(early_s)
        steps = _Steps(step_s)
        cost = timed(steps.interleaved(reader.batches(numbers)))
        return {**cost, "steps_s": steps.taken_s, "ends_s": steps.ends_s, "imported": imported(UNAIDED)}

    serve(answer)
    opened.close()


def imported(package: str) -> bool:
    """Whether this process has a package loaded."""
    return sys.modules.get(package) is not None


class _Steps:
    """Steps that need no processor, as those of a device do: they sleep. Notes when each of them ended."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.taken_s = 0.0
        self.ends_s: list[float] = []

    def interleaved(self, batches: Iterator[Any]) -> Iterator[None]:
        started = time.perf_counter()
        for _ in batches:
            begun = time.perf_counter()
            if self._step_s:
                time.sleep(self._step_s)
            ended = time.perf_counter()
            self.taken_s += ended - begun
            self.ends_s.append(ended - started)
            yield


class _Opened:
    """The readers of one task."""

    def __init__(self) -> None:
        self._task, self._readers = "", dict[str, Reader]()

    def reader(self, name: str, task: str) -> Reader:
        if task != self._task:
            self.close()
            self._task = task
        if name not in self._readers:
            self._readers[name] = open_reader(name, Task.from_json(task))
        return self._readers[name]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def batch_digests(reader: Reader, numbers: range) -> list[int]:
    """Checksums of batches, for comparing readers that read the same rows."""
    return [checksum(batch) for batch in reader.batches(numbers)]


def whole_digest(reader: Reader, numbers: range) -> list[int]:
    """Number of rows, and sum of their checksums, in whatever order they come: of epochs, for comparing loaders."""
    num_rows = total = 0
    for batch in reader.batches(numbers):
        num_rows += batch.shape[0]
        total += sum(row_checksums(batch))
    return [num_rows, total]


def row_checksums(batch: Any) -> Iterator[int]:
    """Checksum of each row, whatever dtypes a reader uses for places of elements."""
    if isinstance(batch, np.ndarray):
        for row in np.ascontiguousarray(batch, dtype=np.float32):
            yield zlib.crc32(row.data)
        return
    indices, data = batch.indices.astype(np.int64), np.ascontiguousarray(batch.data, dtype=np.float32)
    bounds = batch.indptr.tolist()
    for start, stop in pairwise(bounds):
        yield zlib.crc32(data[start:stop].data, zlib.crc32(indices[start:stop].data))


def checksum(batch: Any) -> int:
    """Checksum of rows, whatever dtypes a reader uses for places of elements."""
    if isinstance(batch, np.ndarray):
        parts = [np.ascontiguousarray(batch, dtype=np.float32)]
    else:
        lengths, indices = np.diff(batch.indptr).astype(np.int64), batch.indices.astype(np.int64)
        parts = [lengths, indices, np.ascontiguousarray(batch.data, dtype=np.float32)]
    found = zlib.crc32(repr(batch.shape).encode())
    for part in parts:
        found = zlib.crc32(part.tobytes(), found)
    return found


if __name__ == "__main__":
    main()
