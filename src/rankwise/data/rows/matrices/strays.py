"""Column numbers that are wider than what batches hold them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankwise.data.rows.matrices.plans import MatrixPlan
from rankwise.data.store import BoxError, BoxReport
from rankwise.errors import DataError

__all__ = ["stray_columns"]


def stray_columns(plan: MatrixPlan, reports: Sequence[BoxReport]) -> tuple[BoxReport, ...]:
    """Return reports in which rows with columns that fit no dtype of theirs are damaged, as those with others too far.

    The engine takes numbers that do not fit for a wrong choice of the dtype. Columns come in one that holds all that a
    matrix has.

    Args:
        plan: what was read.
        reports: of values and of column numbers; of a dense stack, or where there are no elements, any.
    """
    if plan.lengths is None or not reports or not any(error.unfit for error in reports[1].errors):
        return tuple(reports)
    values, columns = reports
    errors = tuple(_damaged(plan, error) if error.unfit else error for error in columns.errors)
    return values, replace(columns, errors=errors)


def _damaged(plan: MatrixPlan, error: BoxError) -> BoxError:
    request = plan.boxes[1].request
    place = request.arrays[int(request.which[error.box])].place
    what = DataError(f"{place} names columns that the matrix has not, beyond {request.dtype}: copy or write it again")
    return replace(error, place=place, error=what, damage=True, unfit=False)
