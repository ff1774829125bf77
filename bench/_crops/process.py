"""A reader in a process of its own: it reads rounds of batches when told to, and says what they cost.

Processes keep the readers' thread pools, memory and settings apart, and make CPU time attributable. Only one of them is
given work at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Self

from _crops.machine import cpu_s, resident_bytes
from _crops.readers import ENVIRONMENT, Reader, open_reader
from _crops.task import Task


class ReaderProcess:
    """Starts the process of one reader; a context manager."""

    def __init__(self, name: str, task: Task) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "_crops.process", name, task.to_json()],
            cwd=Path(__file__).parents[1],
            env={**os.environ, **ENVIRONMENT.get(name, {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self, first: int, count: int, *, digest: bool = False) -> dict[str, float]:
        """Read batches ``first .. first + count - 1``; return CPU and wall seconds, or their digest."""
        order = json.dumps({"first": first, "count": count, "digest": digest}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells
            self._process.stdin.write(order)
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name} ended with {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(name: str, task: Task) -> None:
    """Answer one line for each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    reader = open_reader(name, task)
    for line in sys.stdin:
        order = json.loads(line)
        numbers = range(order["first"], order["first"] + order["count"])
        reader.prepare(numbers)
        done = {"digest": digest(reader, numbers)} if order["digest"] else timed(reader, numbers)
        answers.write(json.dumps(done) + "\n")
        answers.flush()
    reader.close()


def digest(reader: Reader, numbers: range) -> list[int]:
    """Checksums of batches, for comparing readers."""
    return [zlib.crc32(batch.tobytes()) for batch in reader.batches(numbers)]


def timed(reader: Reader, numbers: range) -> dict[str, float]:
    """CPU and wall seconds of a round."""
    begun, spent = time.perf_counter(), cpu_s(reader.children)
    for _ in reader.batches(numbers):
        pass
    return {
        "cpu_s": cpu_s(reader.children) - spent,
        "wall_s": time.perf_counter() - begun,
        "resident_bytes": resident_bytes(),
    }


if __name__ == "__main__":
    serve(sys.argv[1], Task.from_json(sys.argv[2]))
