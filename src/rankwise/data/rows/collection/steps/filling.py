"""Second pass: buckets are brought into order and written, a few files at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.crew import Task
from rankwise.data.rows.collection.steps.job import Job
from rankwise.data.rows.datasets import stored_name
from rankwise.data.rows.writing import ShardStream, pad_rows
from rankwise.data.store import load_zarr

__all__ = ["matrix_tasks"]

_BUCKETS = 4  # a task takes the rows of so many buckets, where files are smaller
_TASKS = 32  # but a dataset is cut into so many tasks at least, if it has the files


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
        if array.shards is None:  # there are no elements
            continue
        extent, shard = array.shape[0], array.shards[0]
        shard_rows = max(1, shard * rows // extent)
        step = shard * max(1, min(_BUCKETS * job.bucket_rows, rows // _TASKS) // shard_rows)
        for start in range(0, extent, step):
            part = _Part(number, which, place, start, min(start + step, extent))
            weight = rows * (part.stop - start) / extent / len(job.joined.matrices)
            name = f"fill-{job.names[number]}-{which}-{start // shard}"
            tasks.append(Task(name=name, run=partial(_fill, job, part), rows=weight))
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
    """Return elements and zeros of each row, and where each begins."""
    group = load_zarr().open_group(place, mode="r")
    pointers: IntArray = group["indptr"][:]
    stored: IntArray = np.diff(pointers).astype(np.int64)
    if "row_nnz" not in group:
        return stored, None, pointers
    lengths = group["row_nnz"][:].astype(np.int64)
    return lengths, stored - lengths, pointers


def _bucket_rows(job: Job, part: _Part, start: int, stop: int) -> Iterator[tuple[int, Any]]:
    """Yield the rows of places from `start` to `stop`, bucket by bucket, and the first place of each."""
    cuts = job.cuts
    for number in job.numbers(part.number):
        begin, end = int(cuts[number]), int(cuts[number + 1])
        if begin < stop and end > start:
            rows = job.buckets.open(number).rows(part.which)
            low, high = max(start, begin), min(stop, end)
            job.crew.check()
            yield low, rows if (low, high) == (begin, end) else rows[low - begin : high - begin]


def _stream(job: Job, part: _Part, place: str) -> ShardStream:
    array = load_zarr().open_array(place, mode="r")
    scratch = job.work / "half" / f"{job.piece}-{place.rpartition('/')[2]}"
    batch_bytes = min(2**22, job.options.budget // 32)
    is_sparse = job.joined.matrices[part.which].kind == "csr"
    return ShardStream(array, part.start, part.stop, scratch, batch_bytes=batch_bytes, keep_zeros=is_sparse)
