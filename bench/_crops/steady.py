"""Does a reader that has warmed up keep anything? Python's allocations and resident memory over many batches."""

from __future__ import annotations

import gc
import itertools
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from _crops.machine import resident_bytes
from _crops.task import Task

_WARM_UP = 10


def growth(task: Task, *, batches: int) -> dict[str, float]:
    """Return what reading `batches` batches adds, in bytes per batch, after a warm-up of 10 batches."""
    done = subprocess.run(
        [sys.executable, "-m", "_crops.steady", task.to_json(), str(batches)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(task: Task, batches: int) -> dict[str, float]:
    """Read on, and compare memory after the warm-up with memory at the end."""
    from _crops.readers import open_reader

    stream = open_reader("ours", task).batches(itertools.count())
    _take(stream, _WARM_UP)
    resident = resident_bytes()
    _take(stream, batches)
    resident = resident_bytes() - resident
    # traced afterwards, because tracing itself takes memory; what was not traced must be replaced first
    tracemalloc.start()
    _take(stream, _WARM_UP)
    traced, _ = tracemalloc.get_traced_memory()
    _take(stream, batches)
    now, peak = tracemalloc.get_traced_memory()
    return {
        "batches": batches,
        "resident_bytes_per_batch": resident / batches,
        "python_bytes_per_batch": (now - traced) / batches,
        "python_peak_bytes": peak,
    }


def _take(stream: Iterator[object], batches: int) -> None:
    for _ in range(batches):
        next(stream)
    gc.collect()


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]), int(sys.argv[2]))))
