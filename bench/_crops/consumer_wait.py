"""How long a consumer waits for batches if its own work takes as long as reading one."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator

import numpy as np
from _common.worker import run_module

from _crops.task import Task

_WARM_UP = 5


def waits(task: Task, *, batches: int) -> dict[str, float]:
    """Return seconds per batch of a consumer without work, and the share of waiting of one with as much work."""
    return run_module("_crops.consumer_wait", task.to_json(), str(batches))


def measure(task: Task, batches: int) -> dict[str, float]:
    """Measure a pipeline flat out, then the waiting of a consumer that sleeps as long as a batch took.

    The consumer sleeps, as one does that waits for its device.
    """
    from rankwise.data.crops import Config, Pipeline

    config = Config(samples_per_batch=task.size, sample_shape=task.crop, dtype="f32", max_gpu_memory_bytes=2**33)
    with Pipeline(config) as pipeline:
        pipeline.push(_samples(task))
        for _ in range(_WARM_UP):
            _take(pipeline)
        begun = time.perf_counter()
        for _ in range(batches):
            _take(pipeline)
        batch_s = (time.perf_counter() - begun) / batches
        waited_s, begun = 0.0, time.perf_counter()
        for _ in range(batches):
            waited_s += _take(pipeline)
            time.sleep(batch_s)
        return {"batch_s": batch_s, "wait_share": waited_s / (time.perf_counter() - begun)}


def _take(pipeline) -> float:
    """Take one batch, look at it, give it back; return the seconds until it was there."""
    begun = time.perf_counter()
    with pipeline.pop() as batch:
        waited_s = time.perf_counter() - begun
        np.from_dlpack(batch)
    return waited_s


def _samples(task: Task) -> Iterator:
    from rankwise.data.crops import Sample

    for number in itertools.count():
        for array, box in task.selections(number):
            yield Sample(task.arrays[array], box)


if __name__ == "__main__":
    print(json.dumps(measure(Task.from_json(sys.argv[1]), int(sys.argv[2]))))
