"""Time to the first batch of a new process, without imports: with an empty and with a filled compile cache."""

from __future__ import annotations

import json
import sys
import tempfile
import time

from _common.worker import run_module

from _crops.task import Task


def first_batches(task: Task, *, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Return wall and CPU seconds of first batches: "cold" = nothing compiled yet, "warm" = compiled by another."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for kind in ("cold", "warm"):
                found[kind].append(run_module("_crops.fresh", task.to_json(), NUMBA_CACHE_DIR=cache))
    return found


def measure(task: Task) -> dict[str, float]:
    """Import everything first, then take the time until one batch is there, and of the one after it."""
    import numba  # noqa: F401
    import numcodecs.blosc
    import numcodecs.zstd  # noqa: F401
    import zarr  # noqa: F401

    import rankwise.data.store  # noqa: F401
    from _crops.readers import open_reader

    begun, spent = time.perf_counter(), time.process_time()
    batches = open_reader("ours", task).batches(range(2))
    next(batches)
    first = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - spent}
    begun = time.perf_counter()
    next(batches)
    return {**first, "next_wall_s": time.perf_counter() - begun}


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]))))
