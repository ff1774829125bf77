"""The second pass of a write: it creates the datasets, and fills them from the buckets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.buckets import rename
from rankwise.data.rows.collection.job import Job, repeats_of
from rankwise.data.rows.collection.ranks import Task
from rankwise.data.rows.datasets.on_disk import array_checksums
from rankwise.data.rows.datasets.search import load_anndata, stored_name
from rankwise.data.rows.output.sharded import create_dense, create_sparse, quiet_anndata
from rankwise.data.rows.output.shards import ShardStream, pad_rows
from rankwise.data.store import load_zarr

_DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}


def skeleton_tasks(job: Job) -> list[Task]:
    """Return tasks that create each dataset."""
    return [Task(name=f"begin-{name}", run=partial(_begin, job, number)) for number, name in enumerate(job.names)]


def _begin(job: Job, number: int) -> None:
    """Create a dataset with the sizes of all matrices, but without their elements and columns."""
    place, vars_, form = job.work / job.names[number], job.joined.vars, job.options.form
    if place.exists():  # left by a killed process
        shutil.rmtree(place)
    group = load_zarr().open_group(str(place), mode="w", zarr_format=3)
    with quiet_anndata():
        _write_groups(group, "/", vars_[""], [column.name for column in job.joined.columns])
        others = [name for name in vars_ if name]
        held = group.create_group(stored_name("mod"), attributes=_DICT) if others else None
        for name in others:
            _write_groups(held, name, vars_[name], [])
        for which, field in enumerate(job.joined.matrices):
            parent, _, name = stored_name(field.name).rpartition("/")
            inside, dtype = group[parent] if parent else group, field.dtype
            if field.kind == "csr":
                lengths = np.concatenate([job.buckets.open(bucket).lengths(which) for bucket in job.numbers(number)])
                num_cols = field.row_shape[0]
                create_sparse(inside, name, lengths=lengths, num_cols=num_cols, dtype=dtype, form=form)
            else:
                start, stop = job.span(number)
                create_dense(inside, name, num_rows=stop - start, row_shape=field.row_shape, dtype=dtype, form=form)


def _write_groups(group: Any, name: str, var: Any, columns: list[str]) -> None:
    """Write an AnnData without rows and matrices; later tasks add the columns of its table of observations."""
    anndata = load_anndata()
    anndata.io.write_elem(group, name, anndata.AnnData(var=var, shape=(0, len(var))))
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


def dataset_tasks(job: Job) -> list[Task]:
    """Return the tasks that fill the datasets, dataset after dataset, so that each one frees disk space."""
    tasks = []
    for number, name in enumerate(job.names):
        start, stop = job.span(number)
        if f"end-{name}" in job.marks.notes:  # it may have been moved into the collection already
            tasks.append(Task(name=f"end-{name}", run=lambda: None, rows=stop - start))
            continue
        mine = [*_matrix_tasks(job, number), *_table_tasks(job, number)]
        rows = stop - start - sum(task.rows for task in mine)
        needs = tuple(task.name for task in mine)
        tasks += [*mine, Task(name=f"end-{name}", run=partial(_end, job, number, needs), needs=needs, rows=rows)]
    return tasks


def _end(job: Job, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Free the buckets of a dataset that is complete; return its entry in the manifest."""
    known: dict[str, dict[str, str]] = {}
    for name in names:
        for array, digests in (job.marks.notes[name] or {}).items():
            known.setdefault(array, {}).update(digests)
    start, stop = job.span(number)
    entry = {"rows": stop - start, "arrays": array_checksums(job.work / job.names[number], known)}
    job.buckets.drop(job.numbers(number))
    return entry


_BUCKETS = 4  # buckets per task, if files are smaller
_TASKS = 32  # at least this many tasks per dataset, if it has as many files


class _Part(NamedTuple):
    """Some files of one matrix of one dataset."""

    number: int  # of the dataset
    which: int  # number of the matrix
    start: int  # elements of a CSR matrix, rows of a dense one
    stop: int


def _matrix_tasks(job: Job, number: int) -> list[Task]:
    (first, last), matrices = job.span(number), job.joined.matrices
    rows = last - first
    tasks = []
    for which, field in enumerate(matrices):
        place = f"{job.work / job.names[number]}/{stored_name(field.name)}"
        array = load_zarr().open_array(f"{place}/data" if field.kind == "csr" else place, mode="r")
        if array.shards is None:  # no elements
            continue
        extent, shard = array.shape[0], array.shards[0]
        shard_rows = max(1, shard * rows // extent)
        step = shard * max(1, min(_BUCKETS * job.facts["bucket_rows"], rows // _TASKS) // shard_rows)
        for start in range(0, extent, step):
            part = _Part(number, which, start, min(start + step, extent))
            share = rows * (part.stop - start) / extent
            tasks.append(
                Task(
                    name=f"fill-{job.names[number]}-{which}-{start // shard}",
                    run=partial(_fill, job, part),
                    rows=share / len(matrices),
                    num_bytes=share * field.row_bytes,
                )
            )
    return tasks


def _fill(job: Job, part: _Part) -> dict[str, dict[str, str]]:
    """Write the files of a part; return their digests by the place of the array in the dataset."""
    field, root = job.joined.matrices[part.which], job.work / job.names[part.number]
    sparse, place = field.kind == "csr", stored_name(field.name)
    batch_bytes = min(2**22, job.options.budget // 32)
    with ExitStack() as stack:
        streams = {}
        for name in (f"{place}/data", f"{place}/indices") if sparse else (place,):
            array = load_zarr().open_array(f"{root}/{name}", mode="r")
            scratch = job.work / "half" / f"{job.piece}-{name.rpartition('/')[2]}"
            stream = ShardStream(array, part.start, part.stop, scratch, batch_bytes=batch_bytes, keep_zeros=sparse)
            streams[name] = stack.enter_context(stream)
        first, _ = job.span(part.number)
        dense = ((rows,) for _, rows in _bucket_rows(job, part, first + part.start, first + part.stop))
        for arrays in _elements(job, part) if sparse else dense:
            for stream, values in zip(streams.values(), arrays, strict=True):
                stream.append(values)
        return {name: stream.close() for name, stream in streams.items()}


def _elements(job: Job, part: _Part) -> Iterator[tuple[Any, Any]]:
    """Yield values and columns of a part of a CSR matrix, with the zeros that pad its rows."""
    field, (first, _) = job.joined.matrices[part.which], job.span(part.number)
    group = load_zarr().open_group(f"{job.work / job.names[part.number]}/{stored_name(field.name)}", mode="r")
    pointers: IntArray = group["indptr"][:]
    padded = "row_nnz" in group
    lengths: IntArray = group["row_nnz"][:].astype(np.int64) if padded else np.diff(pointers)
    pads = np.diff(pointers) - lengths
    start = int(np.searchsorted(pointers, part.start, side="right")) - 1
    stop = int(np.searchsorted(pointers, part.stop, side="left"))
    for begin, rows in _bucket_rows(job, part, first + start, first + stop):
        at = slice(begin - first, begin - first + rows.shape[0])
        data, indices = rows.data, rows.indices
        if padded:
            data, indices = pad_rows(data, indices, lengths[at], pads[at], field.row_shape[0])
        offset = int(pointers[at.start])
        wanted = slice(max(0, part.start - offset), part.stop - offset)
        yield data[wanted], indices[wanted]


def _bucket_rows(job: Job, part: _Part, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows with places from `start` to `stop`, bucket by bucket, each with its first place."""
    for number in job.numbers(part.number):
        begin, end = int(job.cuts[number]), int(job.cuts[number + 1])
        if begin < stop and end > start:
            rows = job.buckets.open(number).rows(part.which)
            low, high = max(start, begin), min(stop, end)
            yield low, rows if (low, high) == (begin, end) else rows[low - begin : high - begin]


_SHARE = 4  # of the memory budget, for columns written together


def _table_tasks(job: Job, number: int) -> list[Task]:
    """Return the tasks that write the columns of observations, in groups that fit into memory; 0 is the names."""
    start, stop = job.span(number)
    groups: list[list[int]] = [[]]
    sizes = [0.0]
    for which, column in enumerate((job.joined.index, *job.joined.columns)):
        size = column.field.row_bytes * (stop - start)
        if groups[-1] and sizes[-1] + size > job.options.budget / _SHARE:
            groups.append([])
            sizes.append(0.0)
        groups[-1].append(which)
        sizes[-1] += size
    return [
        Task(name=f"obs-{job.names[number]}-{at}", run=partial(_write_columns, job, number, group), num_bytes=size)
        for at, (group, size) in enumerate(zip(groups, sizes, strict=True))
    ]


def _write_columns(job: Job, number: int, group: Sequence[int]) -> None:
    columns, first = (job.joined.index, *job.joined.columns), len(job.joined.matrices)
    held: dict[int, list[Any]] = {which: [] for which in group}
    for bucket in job.numbers(number):
        rows = job.buckets.open(bucket)
        for which in group:
            held[which].append(rows.rows(first + which))
    place = load_zarr().open_group(str(job.work / job.names[number]), mode="r+")
    for which in group:
        values = np.concatenate(held.pop(which))
        name, tables = columns[which].name, ["obs"]
        if which == 0:  # the names, also of the other modalities
            repeats = repeats_of(job, number)
            values = values if repeats is None else rename(values, repeats)
            name, tables = "_index", [stored_name(f"mod/{key}/obs") if key else "obs" for key in job.joined.vars]
        for table in tables:
            if name in place[table]:  # left by a killed process
                shutil.rmtree(job.work / job.names[number] / table / name)
            with quiet_anndata():
                load_anndata().io.write_elem(place[table], name, columns[which].finish(values))
