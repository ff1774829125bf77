"""First pass: inputs are read once, from beginning to end, and every row goes into the bucket of its place."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankwise.data.rows.collection.crew import Task
from rankwise.data.rows.collection.naming import hash_names
from rankwise.data.rows.collection.steps.job import Block, Job
from rankwise.data.rows.collection.turning import Turned

__all__ = ["spill_tasks", "turn_tasks"]

_ELEMENT_BYTES = 80  # what an element of a matrix by columns takes on its way, sorting included


def turn_tasks(job: Job) -> list[Task]:
    """Matrices that are stored by columns get rows."""
    size = max(1, job.options.budget // 12 // _ELEMENT_BYTES)
    tasks = []
    for (number, name), turned in job.turned.items():
        at = sorted(job.joined.inputs[number].tables).index(name)
        for portion, start in enumerate(range(0, turned.num_elements, size)):
            stop = min(start + size, turned.num_elements)
            run = partial(_turn, job, turned, portion, start, stop)
            tasks.append(Task(name=f"turn-{number}-{at}-{portion}", run=run))
    return tasks


def _turn(job: Job, turned: Turned, portion: int, start: int, stop: int) -> str:
    turned.spill(portion, start, stop)
    return job.piece


def spill_tasks(job: Job) -> list[Task]:
    """Blocks of rows go into buckets."""
    return [
        Task(name=f"spill-{block.number}", run=partial(_spill, job, block), rows=block.stop - block.start)
        for block in job.blocks
    ]


def _spill(job: Job, block: Block) -> str:
    joined, rows = job.joined, slice(block.start, block.stop)
    names = joined.index.block(block.which, rows.start, rows.stop)
    folder = job.work / "hashes"
    folder.mkdir(exist_ok=True)
    half = folder / f".{block.number}-{job.piece}.npy"
    np.save(half, hash_names(names))
    half.rename(folder / f"{block.number}.npy")
    values = [job.matrix(block, which) for which in range(len(joined.matrices))]
    values += [names, *(column.block(block.which, rows.start, rows.stop) for column in joined.columns)]
    job.buckets.add(block.number, job.placing.places(block.rows), values)
    return job.piece
