"""`Spread`: the columns of sparse rows, for dense ones; `DenseRows`: maps the targets of tasks to these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store.decode.tasks import ChunkTasks, address_of
from rankwise.errors import ConfigError

OUTSIDE, TWICE = 1, 2  # of a row: it has an invalid column number, or one column twice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """Maps the elements of a request with runs to columns of dense rows, one row for each run.

    Attributes:
        columns: uint16 or int32 [runs.num_rows], the column of each element of the packed output; undefined for runs
            that could not be read.
        num_cols: columns of the sparse rows, fewer than 2^31: one number for all arrays of the request, or one for
            each.
        places: for each of these int32[num_cols], the target of a column in a dense row, `width` = drop it; None =
            its own number.
        width: elements of a dense row, at least 1.

    Raises:
        ConfigError: the attributes do not fit together.
    """

    columns: NDArray
    num_cols: tuple[int, ...]
    places: tuple[npt.NDArray[np.int32], ...] | None
    width: int

    def __post_init__(self) -> None:
        if (
            self.columns.dtype not in (np.uint16, np.int32)
            or self.columns.ndim != 1
            or not self.columns.flags.c_contiguous
        ):
            raise ConfigError(
                f"columns must be uint16 or int32 along one axis, C-contiguous; got {self.columns.dtype}"
                f"{list(self.columns.shape)}"
            )
        tables = [None] * len(self.num_cols) if self.places is None else list(self.places)
        fits = 1 <= self.width < 2**31 and len(tables) == len(self.num_cols) >= 1
        if not (fits and all(map(self._fits, self.num_cols, tables))):
            raise ConfigError(
                f"places of {self.num_cols} columns must be int32, one each, from 0 to {self.width}, the width of "
                "dense rows; without places there is one place for each column"
            )

    def _fits(self, num_cols: int, places: npt.NDArray[np.int32] | None) -> bool:
        if places is None:
            return num_cols == self.width
        if places.dtype != np.int32 or places.shape != (num_cols,) or not places.flags.c_contiguous:
            return False
        return num_cols == 0 or bool(0 <= places.min() <= places.max() <= self.width)


class DenseRows:
    """Tasks with one axis whose targets are pieces of sparse rows; each piece goes to its dense row.

    Args:
        spread: the columns of the elements; element p of the flat output has column ``spread.columns[p]``.
        rows: int64[T], the row of each target.
        lengths: int64[B], elements of each row.
        tables: int64[T], index of the table of `spread` for each target.
        marks: uint8[T], written: `OUTSIDE` if an invalid column was skipped, `TWICE` if a column may
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
