"""Checks that what was read can be right: invalid columns, lost chunks, and the rows they affect."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.rows.matrices.plans import MatrixPlan
from rankwise.data.rows.notices import say_once
from rankwise.data.store import BoxError, BoxReport, Runs, describe_missing
from rankwise.errors import DataError, SampleError

__all__ = [
    "Ask",
    "Finished",
    "PointerJudge",
    "finished_plain",
    "judged_reports",
    "row_errors",
]

Ask: TypeAlias = Callable[[int], int | None]


class PointerJudge:
    """Checks row pointers: they never decrease, start at 0, and end with the number of elements.

    A chunk that is not in a store is read as zeros. Zeros are correct only if all rows up to the end of the chunk are
    empty: before the first chunk with other numbers, whose first number is then at most the elements of one row.

    Args:
        num_rows: rows of the matrix; there is one pointer more.
        num_elements: elements of the matrix.
        num_cols: most elements of a row; None = unknown.
    """

    def __init__(self, *, num_rows: int, num_elements: int, num_cols: int | None) -> None:
        self._num_rows, self._num_elements, self._num_cols = num_rows, num_elements, num_cols
        self._first_filled: tuple[int, int] | None = None  # start of the first nonzero chunk, its first number

    def is_sound(self, page: IntArray, first: int, chunk: int) -> bool:
        """Quick check: whether no error is found in a page, int64[n], of whole chunks; the last one may be shorter."""
        # chunks of zeros come before all others
        return not self._wrong(page, first) and not (self._num_elements and _is_blank(page[:chunk]) and chunk > 1)

    def problems(self, page: IntArray, first: int, chunk: int, unread: Container[int], ask: Ask) -> dict[int, str]:
        """Return the errors, by the number of the chunk. If two chunks do not fit, both count as damaged.

        Chunks in `unread` have undefined numbers. `ask` returns the number at a place, None if it cannot be read.
        """
        found: dict[int, str] = {}
        last: list[tuple[int, int]] = []  # of chunks that seem sound: number of the chunk, its last number
        for start in range(0, len(page), chunk):
            part, place = page[start : start + chunk], first + start
            number = place // chunk
            if number in unread:
                continue
            what = self._wrong(part, place)
            if not what and self._num_elements and _is_blank(part) and self._is_lost(place, chunk, ask):
                what = f"row {place} and those after it would be empty"
            if what:
                found[number] = what
            elif last and part[0] < last[-1][1]:
                before, _ = last.pop()
                found[before] = found[number] = f"row {place - 1} would begin after it ends"
            else:
                last.append((number, int(part[-1])))
        return found

    def _wrong(self, numbers: IntArray, first: int) -> str:
        falls = np.flatnonzero(np.diff(numbers) < 0)
        last = first + len(numbers) - 1
        if len(falls):
            return f"row {first + int(falls[0])} would begin after it ends"
        if numbers[0] < 0 or (first == 0 and numbers[0] != 0):
            return f"row {first} would begin at element {numbers[0]}"
        if numbers[-1] > self._num_elements or (last == self._num_rows and numbers[-1] != self._num_elements):
            return f"row {max(0, last - 1)} would end at element {numbers[-1]} of {self._num_elements}"
        return ""

    def _is_lost(self, place: int, chunk: int, ask: Ask) -> bool:
        """Whether zeros from a place on come from a missing chunk."""
        if self._first_filled is None:
            self._first_filled = self._find_filled(chunk, ask)
        filled, number = self._first_filled
        return place > filled or (self._num_cols is not None and number > self._num_cols)

    def _find_filled(self, chunk: int, ask: Ask) -> tuple[int, int]:
        for start in range(0, self._num_rows + 1, chunk):
            if ask(min(start + chunk - 1, self._num_rows)):
                return start, ask(start) or 0
        return -1, 0


def _is_blank(numbers: IntArray) -> bool:
    return not numbers[-1] and not numbers[0]


def judged_reports(plan: MatrixPlan, reports: Sequence[BoxReport], columns: NDArray) -> tuple[BoxReport, ...]:
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
    runs = plan.boxes[1].request.runs
    assert runs is not None
    if not _names_twice(np.flatnonzero(columns), indices, runs):
        columns = np.zeros_like(columns)
    lost = values & (columns | _is_sharded(plan))
    if (assumed := np.flatnonzero(values & ~lost)).size:
        held = plan.boxes[0]
        place = held.request.arrays[int(held.request.which[assumed[0]])].place
        say_once(
            f"{describe_missing(held, int(assumed[0]))}: its values count as zeros, for which Zarr writes no file, as "
            "their column numbers exist. If the store was copied, check that it is complete; further chunks of this "
            "array are not reported",
            key=f"zeros of {place}",
        )
    found = ((0, lost), (1, columns & ~lost))
    return [_gap(plan, part, box) for part, boxes in found for box in np.flatnonzero(boxes).tolist()]


def _is_sharded(plan: MatrixPlan) -> BoolArray:
    """Return for which rows the values lie in shards, bool[n]."""
    request = plan.boxes[0].request
    sharded: BoolArray = np.array([array.sharded for array in request.arrays], dtype=np.bool_)[request.which]
    return sharded


def _names_twice(rows: IntArray, indices: NDArray, runs: Runs) -> bool:
    """Whether one of these rows has column 0 more than once."""
    spans = zip(runs.places[rows].tolist(), runs.lengths[rows].tolist(), strict=True)
    return any(np.count_nonzero(indices[begin : begin + length] == 0) > 1 for begin, length in spans)


def _gap(plan: MatrixPlan, part: int, box: int) -> BoxError:
    held = plan.boxes[part]
    error = DataError(
        f"{describe_missing(held, box)}: copy it completely or write it again; if all its elements are stored zeros, "
        "eliminate_zeros() before writing removes them"
    )
    return BoxError(box=box, place=held.request.arrays[int(held.request.which[box])].place, error=error)


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
    judged = judged_reports(plan, reports, indices)
    unsigned = indices.view(np.dtype(f"u{indices.itemsize}"))  # negatives become large: one pass checks both ends
    if len(indices) == 0 or unsigned.max() < spec.shape[0]:
        return Finished(reports=judged)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    outside = np.zeros(len(indptr) - 1, dtype=np.bool_)
    outside[rows[unsigned >= spec.shape[0]]] = True
    return Finished(reports=judged, outside=outside)


class _Dataset(Protocol):
    @property
    def place(self) -> str: ...
    @property
    def num_rows(self) -> int: ...


def row_errors(
    rows: IntArray,
    datasets: Sequence[_Dataset],
    read: Mapping[str, tuple[MatrixPlan, Finished, FieldSpec]],
    *,
    ids: IntArray,
    word: str = "sample",
) -> dict[int, SampleError]:
    """Return the errors of rows that were read, by place in the batch; the first one of each place counts.

    Args:
        rows: int64[B], rows over all datasets.
        datasets: the concatenated datasets.
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


def _found(row: int, datasets: Sequence[_Dataset]) -> tuple[_Dataset, int]:
    """Return the dataset of a row over all datasets, and its row there."""
    for dataset in datasets:
        if row < dataset.num_rows:
            return dataset, row
        row -= dataset.num_rows
    raise AssertionError("a row beyond all datasets was planned")
