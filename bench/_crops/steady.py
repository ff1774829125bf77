"""Whether a warm reader leaks: Python allocations and resident memory over many batches."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterator

from _common.machine import resident_bytes
from _common.worker import run_module

from _crops.task import Task

_WARM_UP = 10
_WINDOWS = 5


def growth(task: Task, *, batches: int) -> dict[str, float]:
    """Return what a batch adds to memory after a warm-up, in bytes.

    The median over 5 windows of `batches` batches: what leaks grows in each of them, while a table of the interpreter
    that is replaced by a larger one grows once.
    """
    return run_module("_crops.steady", task.to_json(), str(batches))


def measure(task: Task, batches: int) -> dict[str, float]:
    """Read on, and look at memory between windows; traced separately, because tracing itself takes memory."""
    from _crops.readers import open_reader

    stream = open_reader("ours", task).batches(itertools.count())
    resident = _median_growth(stream, batches, resident_bytes)
    tracemalloc.start()
    python = _median_growth(stream, batches, lambda: tracemalloc.get_traced_memory()[0])
    return {
        "batches": batches * _WINDOWS,
        "resident_bytes_per_batch": resident,
        "python_bytes_per_batch": python,
        "python_peak_bytes": tracemalloc.get_traced_memory()[1],
    }


def _median_growth(stream: Iterator[object], batches: int, held_bytes: Callable[[], int]) -> float:
    _take(stream, _WARM_UP)
    held = [held_bytes()]
    for _ in range(_WINDOWS):
        _take(stream, batches)
        held.append(held_bytes())
    return statistics.median(after - before for before, after in itertools.pairwise(held)) / batches


def _take(stream: Iterator[object], batches: int) -> None:
    for _ in range(batches):
        next(stream)
    gc.collect()


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]), int(sys.argv[2]))))
