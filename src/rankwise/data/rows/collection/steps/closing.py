"""At the end of the second pass: what a dataset holds is noted, and the buckets of its rows go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rankwise.data.rows.collection.crew import Task
from rankwise.data.rows.collection.steps.filling import matrix_tasks
from rankwise.data.rows.collection.steps.job import Job
from rankwise.data.rows.collection.steps.tables import table_tasks
from rankwise.data.rows.datasets import array_checksums

__all__ = ["dataset_tasks", "entries_of"]


def dataset_tasks(job: Job) -> list[Task]:
    """Return the tasks of the second pass: dataset after dataset, as disk space comes free with each."""
    tasks = []
    for number, name in enumerate(job.names):
        if f"end-{name}" in job.marks.done(look=True):  # it may have moved into the collection already
            rows = float(job.edges[number + 1] - job.edges[number])
            tasks.append(Task(name=f"end-{name}", run=lambda: None, rows=rows))
            continue
        mine = [*matrix_tasks(job, number), *table_tasks(job, number)]
        rows = float(job.edges[number + 1] - job.edges[number]) - sum(task.rows for task in mine)
        needs = tuple(task.name for task in mine)
        tasks += [*mine, Task(name=f"end-{name}", run=partial(_end, job, number, needs), needs=needs, rows=rows)]
    return tasks


def entries_of(job: Job) -> dict[str, Any]:
    """Return what the manifest says about the datasets."""
    return {name: job.marks.note(f"end-{name}") for name in job.names}


def _end(job: Job, number: int, names: Sequence[str]) -> dict[str, Any]:
    known: dict[str, dict[str, str]] = {}
    for name in names:
        for array, digests in (job.marks.note(name) or {}).items():
            known.setdefault(array, {}).update(digests)
    entry = {
        "rows": int(job.edges[number + 1] - job.edges[number]),
        "arrays": array_checksums(job.work / job.names[number], known),
    }
    job.buckets.drop(job.numbers(number))
    return entry
