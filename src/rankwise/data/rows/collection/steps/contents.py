"""Write rows: first into buckets on disk, then into shards; then close what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.inputs import Turned
from rankwise.data.rows.collection.places import hash_names
from rankwise.data.rows.collection.ranks import Task
from rankwise.data.rows.collection.steps.job import Block, Job
from rankwise.data.rows.collection.steps.tables import table_tasks
from rankwise.data.rows.datasets import array_checksums, stored_name
from rankwise.data.rows.output import ShardStream, pad_rows
from rankwise.data.store import load_zarr

__all__ = ["dataset_tasks", "entries_of", "matrix_tasks", "spill_tasks", "turn_tasks"]

_BUCKETS = 4  # buckets per task, if files are smaller
_TASKS = 32  # at least this many tasks per dataset, if it has as many files


class _Part(NamedTuple):
    """Some files of one matrix of one dataset."""

    number: int
    which: int
    place: str
    start: int  # elements of a CSR matrix, rows of a dense one
    stop: int


def matrix_tasks(job: Job, number: int) -> list[Task]:
    """Return the tasks that write the matrices of a dataset."""
    rows = int(job.edges[number + 1] - job.edges[number])
    tasks = []
    for which, field in enumerate(job.joined.matrices):
        place = f"{job.work / job.names[number]}/{stored_name(field.name)}"
        array = load_zarr().open_array(f"{place}/data" if field.kind == "csr" else place, mode="r")
        if array.shards is None:  # no elements
            continue
        extent, shard = array.shape[0], array.shards[0]
        shard_rows = max(1, shard * rows // extent)
        step = shard * max(1, min(_BUCKETS * job.bucket_rows, rows // _TASKS) // shard_rows)
        for start in range(0, extent, step):
            part = _Part(number, which, place, start, min(start + step, extent))
            weight = rows * (part.stop - start) / extent / len(job.joined.matrices)
            name = f"fill-{job.names[number]}-{which}-{start // shard}"
            moved = weight * len(job.joined.matrices) * field.row_bytes
            tasks.append(Task(name=name, run=partial(_fill, job, part), rows=weight, num_bytes=moved))
    return tasks


def _fill(job: Job, part: _Part) -> dict[str, dict[str, str]]:
    """Write the files of a part; return their digests by the place of the array in the dataset."""
    fill = _fill_sparse if job.joined.matrices[part.which].kind == "csr" else _fill_dense
    found = fill(job, part)
    root = f"{job.work / job.names[part.number]}/"
    return {place.removeprefix(root): digests for place, digests in found.items()}


def _fill_dense(job: Job, part: _Part) -> dict[str, dict[str, str]]:
    first = int(job.edges[part.number])
    with _stream(job, part, part.place) as stream:
        for _, rows in _bucket_rows(job, part, first + part.start, first + part.stop):
            stream.append(rows)
        return {part.place: stream.close()}


def _fill_sparse(job: Job, part: _Part) -> dict[str, dict[str, str]]:
    lengths, pads, pointers = _pointers(part.place)
    start = int(np.searchsorted(pointers, part.start, side="right")) - 1
    stop = int(np.searchsorted(pointers, part.stop, side="left"))
    first, num_cols = int(job.edges[part.number]), job.joined.matrices[part.which].row_shape[0]
    places = [f"{part.place}/{name}" for name in ("data", "indices")]
    with _stream(job, part, places[0]) as to_data, _stream(job, part, places[1]) as to_indices:
        for begin, rows in _bucket_rows(job, part, first + start, first + stop):
            at = slice(begin - first, begin - first + rows.shape[0])
            data, indices = rows.data, rows.indices
            if pads is not None:
                data, indices = pad_rows(data, indices, lengths[at], pads[at], num_cols)
            offset = int(pointers[at.start])
            wanted = slice(max(0, part.start - offset), part.stop - offset)
            to_data.append(data[wanted])
            to_indices.append(indices[wanted])
        return {places[0]: to_data.close(), places[1]: to_indices.close()}


def _pointers(place: str) -> tuple[IntArray, IntArray | None, IntArray]:
    """Return for each row the number of elements, of padding zeros, and its start."""
    group = load_zarr().open_group(place, mode="r")
    pointers: IntArray = group["indptr"][:]
    stored: IntArray = np.diff(pointers).astype(np.int64)
    if "row_nnz" not in group:
        return stored, None, pointers
    lengths = group["row_nnz"][:].astype(np.int64)
    return lengths, stored - lengths, pointers


def _bucket_rows(job: Job, part: _Part, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows with places from `start` to `stop`, bucket by bucket, each with its first place."""
    cuts = job.cuts
    for number in job.numbers(part.number):
        begin, end = int(cuts[number]), int(cuts[number + 1])
        if begin < stop and end > start:
            rows = job.buckets.open(number).rows(part.which)
            low, high = max(start, begin), min(stop, end)
            yield low, rows if (low, high) == (begin, end) else rows[low - begin : high - begin]


def _stream(job: Job, part: _Part, place: str) -> ShardStream:
    array = load_zarr().open_array(place, mode="r")
    scratch = job.work / "half" / f"{job.piece}-{place.rpartition('/')[2]}"
    batch_bytes = min(2**22, job.options.budget // 32)
    is_sparse = job.joined.matrices[part.which].kind == "csr"
    return ShardStream(array, part.start, part.stop, scratch, batch_bytes=batch_bytes, keep_zeros=is_sparse)


_ELEMENT_BYTES = 80  # memory for an element of a matrix stored by columns while it is sorted


def turn_tasks(job: Job) -> list[Task]:
    """Return tasks that turn matrices stored by columns."""
    size = max(1, job.options.budget // 12 // _ELEMENT_BYTES)
    tasks = []
    for (number, name), turned in job.turned.items():
        at = sorted(job.joined.inputs[number].tables).index(name)
        for portion, start in enumerate(range(0, turned.num_elements, size)):
            stop = min(start + size, turned.num_elements)
            run = partial(_turn, job, turned, portion, start, stop)
            moved = (stop - start) * _ELEMENT_BYTES
            tasks.append(Task(name=f"turn-{number}-{at}-{portion}", run=run, num_bytes=moved))
    return tasks


def _turn(job: Job, turned: Turned, portion: int, start: int, stop: int) -> str:
    turned.spill(portion, start, stop)
    return job.piece


def spill_tasks(job: Job) -> list[Task]:
    """Return tasks that move blocks of rows into buckets."""
    row_bytes = [sum(held.tables[field.name].row_bytes for field in job.joined.matrices) for held in job.joined.inputs]
    return [
        Task(
            name=f"spill-{block.number}",
            run=partial(_spill, job, block),
            rows=block.stop - block.start,
            num_bytes=(block.stop - block.start) * row_bytes[block.which],
        )
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


def dataset_tasks(job: Job) -> list[Task]:
    """Return the tasks of the second pass, dataset after dataset, so that each one frees disk space."""
    tasks = []
    for number, name in enumerate(job.names):
        if f"end-{name}" in job.marks.notes:  # it may have been moved into the collection already
            rows = float(job.edges[number + 1] - job.edges[number])
            tasks.append(Task(name=f"end-{name}", run=lambda: None, rows=rows))
            continue
        mine = [*matrix_tasks(job, number), *table_tasks(job, number)]
        rows = float(job.edges[number + 1] - job.edges[number]) - sum(task.rows for task in mine)
        needs = tuple(task.name for task in mine)
        tasks += [*mine, Task(name=f"end-{name}", run=partial(_end, job, number, needs), needs=needs, rows=rows)]
    return tasks


def entries_of(job: Job) -> dict[str, Any]:
    """Return the manifest entries of the datasets."""
    return {name: job.marks.notes[f"end-{name}"] for name in job.names}


def _end(job: Job, number: int, names: Sequence[str]) -> dict[str, Any]:
    known: dict[str, dict[str, str]] = {}
    for name in names:
        for array, digests in (job.marks.notes[name] or {}).items():
            known.setdefault(array, {}).update(digests)
    entry = {
        "rows": int(job.edges[number + 1] - job.edges[number]),
        "arrays": array_checksums(job.work / job.names[number], known),
    }
    job.buckets.drop(job.numbers(number))
    return entry
