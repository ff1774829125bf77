"""Rows of CSR matrices whose elements are not in the store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.rows.matrices.plans import MatrixPlan
from rankwise.data.rows.saying import say_once
from rankwise.data.store import BoxError, BoxReport, Runs, name_lacking
from rankwise.errors import DataError

__all__ = ["find_gaps"]


def find_gaps(plan: MatrixPlan, reports: Sequence[BoxReport], indices: NDArray) -> list[BoxError]:
    """Return an error for each row of a CSR matrix that lost elements with a file of chunks.

    Zarr takes a chunk that is not in the store for the fill value, 0. Of dense rows that is the rule, and fine. A CSR
    matrix stores what is not 0, so that values which are not there are lost; and of column numbers that are not there
    some row would name column 0 twice, which no row does: then they are lost for all rows they are missing for. Where
    the index of a shard says that a chunk was left out, its elements are stored zeros indeed. Files of one chunk cannot
    say so: where column numbers are there and values are not, the values were zeros, for which Zarr writes no file, or
    the file was lost; they count as zeros, which is said.

    Args:
        plan: what was read.
        reports: of values and of column numbers; none where there are no elements.
        indices: column numbers that came, where the plan has them.
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
            f"{name_lacking(held, int(assumed[0]))}: its values count as zeros, for which Zarr writes no file, as "
            "their column numbers are there. If the store was copied, look whether it is whole; further chunks of this "
            "array are not named",
            key=f"zeros of {place}",
        )
    lost = ((0, values), (1, columns & ~values))
    return [_gap(plan, part, box) for part, boxes in lost for box in np.flatnonzero(boxes).tolist()]


def _is_sharded(plan: MatrixPlan) -> BoolArray:
    """Of which rows the values lie in shards, bool[n]."""
    request = plan.boxes[0].request
    sharded: BoolArray = np.array([array.sharded for array in request.arrays], dtype=np.bool_)[request.which]
    return sharded


def _names_twice(rows: IntArray, indices: NDArray, runs: Runs) -> bool:
    """Whether one of these rows names column 0 more than once."""
    spans = zip(runs.places[rows].tolist(), runs.lengths[rows].tolist(), strict=True)
    return any(np.count_nonzero(indices[begin : begin + length] == 0) > 1 for begin, length in spans)


def _gap(plan: MatrixPlan, part: int, box: int) -> BoxError:
    held = plan.boxes[part]
    error = DataError(
        f"{name_lacking(held, box)}: copy it whole or write it again; if all its elements are stored zeros, "
        "eliminate_zeros() before writing leaves them out"
    )
    return BoxError(box=box, place=held.request.arrays[int(held.request.which[box])].place, error=error)
