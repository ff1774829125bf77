"""Checks that what was read can be right: invalid columns, lost chunks, and the rows they affect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.rows.matrices.stacks import MatrixPlan
from rankwise.data.rows.notices import warn_once
from rankwise.data.store import BoxError, BoxReport, describe_missing
from rankwise.errors import DataError, SampleError


def checked_reports(plan: MatrixPlan, reports: Sequence[BoxReport], columns: NDArray) -> tuple[BoxReport, ...]:
    """Return the reports of a read of CSR rows with the damage that the engine cannot know: see `_gaps`, `_damaged`."""
    if not reports:
        return ()
    values, named = reports
    lost = values.lost_boxes | named.lost_boxes
    if not named.errors and not lost.any():
        return values, named
    errors = [_damaged(plan, error) if error.unfit else error for error in named.errors]
    return values, replace(named, errors=(*errors, *_gaps(plan, values.lost_boxes, named.lost_boxes, columns)))


def _damaged(plan: MatrixPlan, error: BoxError) -> BoxError:
    """Turn the error of a row with columns beyond the dtype into one of damage, like that of other invalid columns.

    The engine reports numbers that do not fit as a wrong choice of the dtype. But the dtype for columns holds all
    column numbers of the matrix.
    """
    request = plan.boxes[1].request
    place = request.arrays[int(request.which[error.box])].place
    what = DataError(f"{place} has column numbers outside the matrix, beyond {request.dtype}: copy or write it again")
    return replace(error, place=place, error=what, damage=True, unfit=False)


def _gaps(plan: MatrixPlan, values: BoolArray, columns: BoolArray, indices: NDArray) -> list[BoxError]:
    """Return an error for each row of a CSR matrix that lost elements with a chunk file.

    `values` and `columns`, bool[n], are the rows for which a file of either is missing; `indices` what was read.

    Zarr reads a chunk that is not in the store as the fill value, 0. For dense rows this is normal. A CSR matrix stores
    only nonzero values, so missing values are lost. Missing column numbers read as 0; if a row then has column 0 twice,
    which never happens otherwise, they are lost for all rows in these chunks. If the index of a shard says that a chunk
    was left out, its elements are stored zeros. Without shards this is unknown: if only the values are missing, either
    they were zeros, for which Zarr writes no file, or the file was lost. They count as zeros, with a warning.
    """
    held, runs = plan.boxes[0].request, plan.boxes[1].request.runs
    assert runs is not None
    spans = zip(runs.places[columns].tolist(), runs.lengths[columns].tolist(), strict=True)
    if not any(np.count_nonzero(indices[begin : begin + length] == 0) > 1 for begin, length in spans):
        columns = np.zeros_like(columns)
    sharded = np.array([array.sharded for array in held.arrays], dtype=np.bool_)[held.which]
    lost = values & (columns | sharded)
    if (assumed := np.flatnonzero(values & ~lost)).size:
        place = held.arrays[int(held.which[assumed[0]])].place
        warn_once(
            f"{describe_missing(plan.boxes[0], int(assumed[0]))}: its values count as zeros, for which Zarr writes no "
            "file, as their column numbers exist. If the store was copied, check that it is complete; further chunks "
            "of this array are not reported",
            key=f"zeros of {place}",
        )
    errors = []
    for part, boxes in zip(plan.boxes, (lost, columns & ~lost), strict=True):
        for box in np.flatnonzero(boxes).tolist():
            error = DataError(
                f"{describe_missing(part, box)}: copy it completely or write it again; if all its elements are stored "
                "zeros, eliminate_zeros() before writing removes them"
            )
            errors.append(BoxError(box=box, place=part.request.arrays[int(part.request.which[box])].place, error=error))
    return errors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """The result of reading rows of a matrix."""

    reports: tuple[BoxReport, ...]  # of all its reads
    outside: BoolArray | None = None  # bool[B], rows with an invalid column number; None = there are none


def finished_plain(
    plan: MatrixPlan, arrays: Sequence[NDArray], spec: FieldSpec, reports: Sequence[BoxReport]
) -> Finished:
    """Return the result for rows that are handed over as stored.

    It only checks them: an invalid column would make a matrix product read beyond its memory.
    """
    if plan.lengths is None:
        return Finished(reports=tuple(reports))
    _, indices, indptr = arrays
    checked = checked_reports(plan, reports, indices)
    unsigned = indices.view(np.dtype(f"u{indices.itemsize}"))  # negatives become large: one pass checks both ends
    if len(indices) == 0 or unsigned.max() < spec.shape[0]:
        return Finished(reports=checked)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    outside = np.zeros(len(indptr) - 1, dtype=np.bool_)
    outside[rows[unsigned >= spec.shape[0]]] = True
    return Finished(reports=checked, outside=outside)


def row_errors(
    rows: IntArray,
    datasets: Sequence[Any],
    read: Mapping[str, tuple[MatrixPlan, Finished, FieldSpec]],
    *,
    ids: IntArray,
    word: str = "sample",
) -> dict[int, SampleError]:
    """Return the errors of rows that were read, by place in the batch; the first one of each place counts.

    Args:
        rows: int64[B], rows over all datasets.
        datasets: the concatenated datasets or matrices: what has a `place` and `num_rows`.
        read: what was read of matrices, by their names in the datasets; "" = the dataset is the matrix. The spec is
            that of the stored rows.
        ids: int64[B], sample ids.
        word: what an id stands for, for messages.
    """
    errors: list[BoxError] = []
    for plan, _, _ in read.values():
        errors += plan.lost
    for _, finished, _ in read.values():
        for report in finished.reports:
            errors += report.errors
    for name, (_, finished, spec) in read.items():
        for place in [] if finished.outside is None else np.flatnonzero(finished.outside).tolist():
            dataset, _ = _found(int(rows[place]), datasets)
            where = f"{dataset.place}/{name}" if name else dataset.place
            what = DataError(
                f"it has column numbers outside the matrix{f' {where}' if name else ''} (it has {spec.shape[0]}): "
                "copy or write it again"
            )
            errors.append(BoxError(box=place, place=where, error=what))
    found: dict[int, SampleError] = {}
    for error in errors:
        if error.box not in found:
            dataset, row = _found(int(rows[error.box]), datasets)
            sample = int(ids[error.box])
            found[error.box] = SampleError(
                f"{word} {sample} (row {row} of {dataset.place}) cannot be read: {error.error}",
                sample=sample, place=error.place, damage=error.damage,
            )  # fmt: skip
            found[error.box].__cause__ = error.error
    return found


def _found(row: int, datasets: Sequence[Any]) -> tuple[Any, int]:
    """Return the dataset of a row over all datasets, and its row there."""
    for dataset in datasets:
        if row < dataset.num_rows:
            return dataset, row
        row -= dataset.num_rows
    raise AssertionError("a row beyond all datasets was planned")
