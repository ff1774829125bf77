"""One process for each program that is compared, which reads requests when told to and says what they cost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np
from _crops.machine import cpu_s

from _rows.readers import KINDS, Reader, open_reader
from _rows.task import Task


class ReaderProcess:
    """Starts the process of a program; a context manager. Only one of them is given work at a time.

    Args:
        python: the interpreter.
    """

    def __init__(self, python: str) -> None:
        # another interpreter must not find the packages of this one
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable}
        self._process = subprocess.Popen(
            [python, "-m", "_rows.process"],
            cwd=Path(__file__).parents[1],
            env=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self, name: str, task: Task, first: int, count: int, *, digest: bool = False) -> dict[str, Any]:
        """Read requests ``first .. first + count - 1``; return CPU and wall seconds, or their digest."""
        order = {"name": name, "task": task.to_json(), "first": first, "count": count, "digest": digest}
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {KINDS[name].title} ended with {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Answer one line for each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    opened = _Opened()
    for line in sys.stdin:
        order = json.loads(line)
        numbers = range(order["first"], order["first"] + order["count"])
        reader = opened.reader(order["name"], order["task"])
        reader.prepare(numbers)
        done = digest(reader, numbers) if order["digest"] else timed(reader, numbers)
        answers.write(json.dumps(done) + "\n")
        answers.flush()
    opened.close()


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


def digest(reader: Reader, numbers: range) -> dict[str, Any]:
    """Checksums of batches, for comparing readers."""
    return {"digest": [checksum(batch) for batch in reader.batches(numbers)]}


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


def timed(reader: Reader, numbers: range) -> dict[str, float]:
    """CPU and wall seconds of a round, all threads."""
    begun, spent = time.perf_counter(), cpu_s()
    for _ in reader.batches(numbers):
        pass
    return {"cpu_s": cpu_s() - spent, "wall_s": time.perf_counter() - begun}


if __name__ == "__main__":
    serve()
