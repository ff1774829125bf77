"""Checks that what was read can be right: invalid columns, lost chunks, and the rows they affect."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
    "RowErrors",
    "find_gaps",
    "finished_plain",
    "stray_columns",
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


def stray_columns(plan: MatrixPlan, reports: Sequence[BoxReport]) -> tuple[BoxReport, ...]:
    """Return reports that count rows with columns beyond the dtype as damaged, like rows with other invalid columns.

    The engine reports numbers that do not fit as a wrong choice of the dtype. But the dtype for columns holds all
    column numbers of the matrix.
    """
    if plan.lengths is None or not reports or not any(error.unfit for error in reports[1].errors):
        return tuple(reports)
    values, columns = reports
    errors = tuple(_damaged(plan, error) if error.unfit else error for error in columns.errors)
    return values, replace(columns, errors=errors)


def _damaged(plan: MatrixPlan, error: BoxError) -> BoxError:
    request = plan.boxes[1].request
    place = request.arrays[int(request.which[error.box])].place
    what = DataError(f"{place} has column numbers outside the matrix, beyond {request.dtype}: copy or write it again")
    return replace(error, place=place, error=what, damage=True, unfit=False)


def find_gaps(plan: MatrixPlan, reports: Sequence[BoxReport], indices: NDArray) -> list[BoxError]:
    """Return an error for each row of a CSR matrix that lost elements with a chunk file.

    Zarr reads a chunk that is not in the store as the fill value, 0. For dense rows this is normal. A CSR matrix stores
    only nonzero values, so missing values are lost. Missing column numbers read as 0; if a row then has column 0 twice,
    which never happens otherwise, they are lost for all rows in these chunks. If the index of a shard says that a chunk
    was left out, its elements are stored zeros. Without shards this is unknown: if only the values are missing, either
    they were zeros, for which Zarr writes no file, or the file was lost. They count as zeros, with a warning.
    """
    if plan.lengths is None or not any(report.lost_boxes.any() for report in reports):
        return []
    values, columns = (report.lost_boxes for report in reports)
    runs = plan.boxes[1].request.runs
    assert runs is not None
    if not _names_twice(np.flatnonzero(columns), indices, runs):
        columns = np.zeros_like(columns)
    values = values & (columns | _is_sharded(plan))
    if (assumed := np.flatnonzero(reports[0].lost_boxes & ~values)).size:
        held = plan.boxes[0]
        place = held.request.arrays[int(held.request.which[assumed[0]])].place
        say_once(
            f"{describe_missing(held, int(assumed[0]))}: its values count as zeros, for which Zarr writes no file, as "
            "their column numbers exist. If the store was copied, check that it is complete; further chunks of this "
            "array are not reported",
            key=f"zeros of {place}",
        )
    lost = ((0, values), (1, columns & ~values))
    return [_gap(plan, part, box) for part, boxes in lost for box in np.flatnonzero(boxes).tolist()]


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
    gaps: Sequence[BoxError] = ()  # errors of rows that lost elements


def finished_plain(
    plan: MatrixPlan, reports: Sequence[BoxReport], arrays: Sequence[NDArray], spec: FieldSpec
) -> Finished:
    """Return the result for rows that are handed over as stored.

    It only checks them: an invalid column would make a matrix product read beyond its memory.
    """
    if plan.lengths is None:
        return Finished(reports=tuple(reports))
    _, indices, indptr = arrays
    reports = stray_columns(plan, reports)
    gaps = find_gaps(plan, reports, indices)
    unsigned = indices.view(np.dtype(f"u{indices.itemsize}"))  # negatives become large: one pass checks both ends
    if len(indices) == 0 or unsigned.max() < spec.shape[0]:
        return Finished(reports=reports, gaps=gaps)
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    outside = np.zeros(len(indptr) - 1, dtype=np.bool_)
    outside[rows[unsigned >= spec.shape[0]]] = True
    return Finished(reports=reports, outside=outside, gaps=gaps)


class _Dataset(Protocol):
    @property
    def place(self) -> str: ...
    @property
    def num_rows(self) -> int: ...


class RowErrors:
    """Collects errors while rows are read; the first error of each place in the batch counts.

    Args:
        ids: int64[B], sample ids.
        rows: int64[B], rows over all datasets.
        datasets: the concatenated datasets.
        word: what an id stands for, for messages.

    Attributes:
        found: the errors, by place.
    """

    def __init__(self, ids: IntArray, rows: IntArray, datasets: Sequence[_Dataset], *, word: str = "sample") -> None:
        self._ids, self._rows, self._datasets, self._word = ids, rows, datasets, word
        self.found: dict[int, SampleError] = {}

    def gather(
        self, plans: Mapping[str, MatrixPlan], done: Mapping[str, Finished], specs: Mapping[str, FieldSpec]
    ) -> None:
        """Add the errors of matrices, by their names in the datasets; "" = the dataset is the matrix."""
        lost = (plan.lost for plan in plans.values())
        reports = [report for finished in done.values() for report in finished.reports]
        gaps = (finished.gaps for finished in done.values())
        for error in chain(*lost, *(report.errors for report in reports), *gaps):
            self._add(error.box, error.error, error.place, damage=error.damage)
        for name, finished in done.items():
            for place in [] if finished.outside is None else np.flatnonzero(finished.outside).tolist():
                dataset, _ = self._where(place)
                where = f"{dataset.place}/{name}" if name else dataset.place
                what = DataError(
                    f"it has column numbers outside the matrix{f' {where}' if name else ''} (it has "
                    f"{specs[name].shape[0]}): copy or write it again"
                )
                self._add(place, what, where, damage=True)

    def _add(self, at: int, error: DataError, place: str, *, damage: bool) -> None:
        if at in self.found:
            return
        dataset, row = self._where(at)
        sample = int(self._ids[at])
        self.found[at] = SampleError(
            f"{self._word} {sample} (row {row} of {dataset.place}) cannot be read: {error}",
            sample=sample, place=place, damage=damage,
        )  # fmt: skip
        self.found[at].__cause__ = error

    def _where(self, place: int) -> tuple[_Dataset, int]:
        row = int(self._rows[place])
        for dataset in self._datasets:
            if row < dataset.num_rows:
                return dataset, row
            row -= dataset.num_rows
        raise AssertionError("a row beyond all datasets was planned")
