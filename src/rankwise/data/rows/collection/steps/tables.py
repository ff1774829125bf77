"""Second pass: names and columns of the observations are written, some columns of a dataset at a time."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rankwise.data.rows.collection.columns import ObsColumn
from rankwise.data.rows.collection.crew import Task
from rankwise.data.rows.collection.moving import Text
from rankwise.data.rows.collection.naming import rename
from rankwise.data.rows.collection.steps.job import Job
from rankwise.data.rows.collection.steps.names import repeats_of
from rankwise.data.rows.datasets import load_anndata, stored_name
from rankwise.data.rows.writing import quiet_anndata
from rankwise.data.store import load_zarr

__all__ = ["table_tasks"]

_SHARE = 4  # of the memory budget, for the columns that are written together


def table_tasks(job: Job, number: int) -> list[Task]:
    """Return the tasks that write the table of observations of a dataset."""
    rows = int(job.edges[number + 1] - job.edges[number])
    return [
        Task(name=f"obs-{job.names[number]}-{at}", run=partial(_write, job, number, group))
        for at, group in enumerate(_groups(job, rows))
    ]


def _groups(job: Job, rows: int) -> list[list[int]]:
    """Cut the columns into groups that fit into memory together; number 0 is the names."""
    sizes = [column.field.row_bytes * rows for column in (job.joined.index, *job.joined.columns)]
    groups: list[list[int]] = [[]]
    held = 0.0
    for which, size in enumerate(sizes):
        if groups[-1] and held + size > job.options.budget / _SHARE:
            groups.append([])
            held = 0.0
        groups[-1].append(which)
        held += size
    return groups


def _write(job: Job, number: int, group: Sequence[int]) -> None:
    columns, first = (job.joined.index, *job.joined.columns), len(job.joined.matrices)
    held: dict[int, list[Any]] = {which: [] for which in group}
    for bucket in job.numbers(number):
        rows = job.buckets.open(bucket)
        for which in group:
            held[which].append(rows.rows(first + which))
    place = load_zarr().open_group(str(job.work / job.names[number]), mode="r+")
    for which in group:
        values = _one(held.pop(which))
        if which == 0:
            _write_names(job, number, place, values)
        else:
            _put(place["obs"], columns[which].name, columns[which], values)


def _one(parts: list[Any]) -> Any:
    if not isinstance(parts[0], Text):
        return np.concatenate(parts)
    return Text(np.concatenate([part.lengths for part in parts]), np.concatenate([part.data for part in parts]))


def _write_names(job: Job, number: int, place: Any, names: Text) -> None:
    repeats = repeats_of(job, *job.edges[number : number + 2].tolist())
    names = names if repeats is None else rename(names, repeats)
    for modality in job.joined.vars:
        obs = place[stored_name(f"mod/{modality}/obs") if modality else "obs"]
        _put(obs, "_index", job.joined.index, names)


def _put(group: Any, name: str, column: ObsColumn, values: Any) -> None:
    if name in group:  # left from a process that was killed
        shutil.rmtree(group.store.root / group.path / name)
    with quiet_anndata():
        load_anndata().io.write_elem(group, name, column.finish(values))
