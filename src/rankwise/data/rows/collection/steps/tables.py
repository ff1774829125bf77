"""Creates the empty tables of a collection, and writes their columns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rankwise.data.rows.collection.buckets import Text
from rankwise.data.rows.collection.columns import UnitedColumn
from rankwise.data.rows.collection.places import rename
from rankwise.data.rows.collection.ranks import Task
from rankwise.data.rows.collection.steps.job import Job, repeats_of
from rankwise.data.rows.datasets import load_anndata, stored_name
from rankwise.data.rows.output import create_dense, create_sparse, quiet_anndata
from rankwise.data.store import load_zarr

__all__ = ["skeleton_tasks", "table_tasks"]

_SHARE = 4  # of the memory budget, for columns written together


def table_tasks(job: Job, number: int) -> list[Task]:
    """Return the tasks that write the table of observations of a dataset."""
    rows = int(job.edges[number + 1] - job.edges[number])
    sizes = [column.field.row_bytes * rows for column in (job.joined.index, *job.joined.columns)]
    return [
        Task(
            name=f"obs-{job.names[number]}-{at}",
            run=partial(_write, job, number, group),
            num_bytes=sum(sizes[which] for which in group),
        )
        for at, group in enumerate(_groups(job, sizes))
    ]


def _groups(job: Job, sizes: Sequence[float]) -> list[list[int]]:
    """Divide the columns into groups that fit into memory; number 0 is the names."""
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


def _put(group: Any, name: str, column: UnitedColumn, values: Any) -> None:
    if name in group:  # left by a killed process
        shutil.rmtree(group.store.root / group.path / name)
    with quiet_anndata():
        load_anndata().io.write_elem(group, name, column.finish(values))


_DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}


def skeleton_tasks(job: Job) -> list[Task]:
    """Return tasks that create each dataset."""
    return [Task(name=f"begin-{name}", run=partial(_begin, job, number)) for number, name in enumerate(job.names)]


def _begin(job: Job, number: int) -> None:
    place = job.work / job.names[number]
    if place.exists():  # left by a killed process
        shutil.rmtree(place)
    group = load_zarr().open_group(str(place), mode="w", zarr_format=3)
    with quiet_anndata():
        _write_groups(group, "/", job.joined.vars[""], [column.name for column in job.joined.columns])
        others = [name for name in job.joined.vars if name]
        held = group.create_group(stored_name("mod"), attributes=_DICT) if others else None
        for name in others:
            _write_groups(held, name, job.joined.vars[name], [])
        for which in range(len(job.joined.matrices)):
            _create_matrix(job, number, which, group)


def _write_groups(group: Any, name: str, var: Any, columns: list[str]) -> None:
    """Write an AnnData without rows and matrices; later tasks add the columns of its table of observations."""
    anndata = load_anndata()
    anndata.experimental.write_dispatched(group, name, anndata.AnnData(var=var, shape=(0, len(var))), callback=_plain)
    made = group if name == "/" else group[name]
    for part in ("X", "obs"):
        if part in made:
            del made[part]
    made.create_group("obs").attrs.update(
        {
            "encoding-type": "dataframe",
            "encoding-version": "0.2.0",
            "_index": "_index",
            "column-order": columns,
        }
    )


def _plain(write: Any, store: Any, name: str, elem: Any, dataset_kwargs: Any = None, **facts: Any) -> None:
    del facts
    write(store, name, elem, dataset_kwargs=dict(dataset_kwargs or {}))


def _create_matrix(job: Job, number: int, which: int, group: Any) -> None:
    field, form = job.joined.matrices[which], job.options.form
    parent, _, name = stored_name(field.name).rpartition("/")
    parent_group = group[parent] if parent else group
    if field.kind == "csr":
        lengths = np.concatenate([job.buckets.open(bucket).lengths(which) for bucket in job.numbers(number)])
        num_cols = field.row_shape[0]
        create_sparse(parent_group, name, lengths=lengths, num_cols=num_cols, dtype=field.dtype, form=form)
    else:
        rows = int(job.edges[number + 1] - job.edges[number])
        create_dense(parent_group, name, num_rows=rows, row_shape=field.row_shape, dtype=field.dtype, form=form)
