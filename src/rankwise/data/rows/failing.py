"""What is wrong with rows, as errors that name the row and where it lies."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.data.contract import IntArray, ReadReport
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.store import BoxError, BoxReport, sum_reports
from rankwise.errors import DataError, SampleError

__all__ = ["RowErrors"]


class RowErrors:
    """Gathers what goes wrong while a share is read; the first error of each place of the batch counts.

    Args:
        ids: int64[B], sample ids.
        rows: int64[B], rows over all datasets.
        datasets: the datasets, one over the other.
    """

    def __init__(self, ids: IntArray, rows: IntArray, datasets: Sequence[AnyDataset]) -> None:
        self._ids = ids
        self._rows = rows
        self._datasets = datasets
        self._found: dict[int, SampleError] = {}

    def add(self, error: BoxError) -> None:
        """Take over an error of the engine."""
        if error.box not in self._found:
            self._found[error.box] = self._made(error.box, error.error, error.place, damage=error.damage)

    def add_outside(self, places: IntArray, name: str, num_cols: int) -> None:
        """Note rows that name columns that there are not."""
        for place in places.tolist():
            if place not in self._found:
                dataset, _ = self._where(place)
                where = f"{dataset.place}/{name}"
                what = DataError(
                    f"it names columns that the matrix {where} has not (it has {num_cols}): copy or write it again"
                )
                self._found[place] = self._made(place, what, where, damage=True)

    def summed(self, reports: Sequence[BoxReport]) -> ReadReport:
        """Return the report of the share."""
        return sum_reports(len(self._ids), self._found, reports)

    def _made(self, place: int, error: DataError, where: str, *, damage: bool) -> SampleError:
        dataset, row = self._where(place)
        sample = int(self._ids[place])
        made = SampleError(
            f"sample {sample} (row {row} of {dataset.place}) cannot be read: {error}",
            sample=sample, place=where, damage=damage,
        )  # fmt: skip
        made.__cause__ = error
        return made

    def _where(self, place: int) -> tuple[AnyDataset, int]:
        row = int(self._rows[place])
        for dataset in self._datasets:
            if row < dataset.num_rows:
                return dataset, row
            row -= dataset.num_rows
        raise AssertionError("a row beyond all datasets was planned")
