"""`DenseRows`: maps the targets of tasks to dense rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store.boxes.values import OUTSIDE, TWICE, Spread
from rankwise.data.store.decode.tasks import ChunkTasks, address_of

__all__ = ["OUTSIDE", "UNSURE", "DenseRows"]

UNSURE = TWICE  # a column may appear twice


class DenseRows:
    """Tasks with one axis whose targets are pieces of sparse rows; each piece goes to its dense row.

    Args:
        spread: the columns of the elements; element p of the flat output has column ``spread.columns[p]``.
        rows: int64[T], the row of each target.
        lengths: int64[B], elements of each row.
        tables: int64[T], index of the table of `spread` for each target.
        marks: uint8[T], written: `OUTSIDE` if an invalid column was skipped, `UNSURE` if a column may
            appear twice.

    Attributes:
        settings: arguments of the compiled code, by job slot.

    Raises:
        ValueError: tables do not fit together: a bug in the planner, not damage.
    """

    def __init__(
        self, *, spread: Spread, rows: IntArray, lengths: IntArray, tables: IntArray, marks: npt.NDArray[np.uint8]
    ) -> None:
        self.spread, self.rows, self.lengths, self.marks = spread, rows, lengths, marks
        if not len(rows) == len(tables) == len(marks):
            raise ValueError("dense rows need a row, a table and a mark for each target")
        for name, numbers, end in (("rows", rows, len(lengths)), ("tables", tables, len(spread.num_cols))):
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
                raise ValueError(f"{name} of dense rows must be numbers from 0 to {end - 1}")
        # as narrow as possible: they share the L1 cache with the row
        tables_of_places = [table.astype(self.place_dtype) for table in spread.places or ()]
        addresses = [address_of(table) for table in tables_of_places] or [0] * len(spread.num_cols)
        num_cols, places = np.array(spread.num_cols, dtype=np.int64), np.array(addresses, dtype=np.int64)
        # in the order of targets: rows come in any order, and a random lookup waits for memory
        row_lengths = lengths[rows]
        self._held = tables, num_cols, places, row_lengths, tables_of_places  # compiled code has their addresses only
        self.settings = {
            "columns": address_of(spread.columns), "column_bytes": spread.columns.itemsize, "width": spread.width,
            "rows": address_of(rows), "row_lengths": address_of(row_lengths), "tables": address_of(tables),
            "num_cols": address_of(num_cols), "places": address_of(places), "marks": address_of(marks),
        }  # fmt: skip

    @property
    def place_dtype(self) -> DType:
        """Dtype of the tables of places in compiled code."""
        return np.dtype(np.uint16 if self.spread.width < 2**16 else np.int32)

    def check(self, tasks: ChunkTasks, out: NDArray) -> None:
        """Refuse tasks that would access invalid memory.

        Raises:
            ValueError: tasks or output do not fit the tables: a bug in the planner, not damage.
        """
        wanted = (len(self.lengths), self.spread.width)
        if out.shape != wanted or not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError(f"dense rows need a C-contiguous and writeable output of {wanted}, got {out.shape}")
        if tasks.reach >= len(self.spread.columns):
            raise ValueError(f"targets reach element {tasks.reach}, but there are {len(self.spread.columns)} columns")
        if len(tasks.dst_strides) != 1 or tasks.scale is not None or len(self.rows) != len(tasks.dst_start):
            raise ValueError("dense rows need unscaled targets of one axis, and a row for each")
