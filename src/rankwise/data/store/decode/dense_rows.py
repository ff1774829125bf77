"""`DenseRows`: maps the targets of tasks to dense rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store.boxes.values import OUTSIDE, TWICE, Spread
from rankwise.data.store.decode.tasks import SLOTS, ChunkTasks, address_of

__all__ = ["OUTSIDE", "UNSURE", "DenseRows"]

UNSURE = TWICE  # a column may appear twice

# Arguments of the compiled code, in the order of their job slots
_NAMES = ("columns", "column_bytes", "width", "rows", "row_lengths", "tables", "num_cols", "places", "marks")
_PLACES = np.array([SLOTS[name] // 8 for name in _NAMES])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseRows:
    """Tasks with one axis whose targets are pieces of sparse rows; each piece goes to its dense row.

    Attributes:
        spread: the columns of the elements; element p of the flat output has column ``spread.columns[p]``.
        rows: int64[T], the row of each target.
        lengths: int64[B], elements of each row.
        tables: int64[T], index of the table of `spread` for each target.
        marks: uint8[T], written: `OUTSIDE` if an invalid column was skipped, `UNSURE` if a column may
            appear twice.

    Raises:
        ValueError: tables do not fit together: a bug in the planner, not damage.
    """

    spread: Spread
    rows: IntArray
    lengths: IntArray
    tables: IntArray
    marks: npt.NDArray[np.uint8]
    num_cols: IntArray = field(init=False, repr=False)
    places: IntArray = field(init=False, repr=False)
    _row_lengths: IntArray = field(init=False, repr=False)
    _held: tuple[NDArray, ...] = field(init=False, repr=False)
    _settings: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        spread = self.spread
        # as narrow as possible: they share the L1 cache with the row
        held = () if spread.places is None else tuple(table.astype(self.place_dtype) for table in spread.places)
        addresses = [address_of(table) for table in held] or [0] * len(spread.num_cols)
        object.__setattr__(self, "num_cols", np.array(spread.num_cols, dtype=np.int64))
        object.__setattr__(self, "places", np.array(addresses, dtype=np.int64))
        object.__setattr__(self, "_held", held)
        if not len(self.rows) == len(self.tables) == len(self.marks):
            raise ValueError("dense rows need a row, a table and a mark for each target")
        ends = {"rows": len(self.lengths), "tables": len(self.num_cols)}
        for name, end in ends.items():
            numbers = getattr(self, name)
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
                raise ValueError(f"{name} of dense rows must be numbers from 0 to {end - 1}")
        # in the order of targets: rows come in any order, and a random lookup waits for memory
        object.__setattr__(self, "_row_lengths", self.lengths[self.rows])
        settings = {
            "columns": address_of(spread.columns), "column_bytes": spread.columns.itemsize, "width": spread.width,
            "rows": address_of(self.rows), "row_lengths": address_of(self._row_lengths),
            "tables": address_of(self.tables), "num_cols": address_of(self.num_cols),
            "places": address_of(self.places), "marks": address_of(self.marks),
        }  # fmt: skip
        object.__setattr__(self, "_settings", np.array([settings[name] for name in _NAMES], dtype=np.int64))

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
        if tasks.ndim != 1 or tasks.scaled or len(self.rows) != len(tasks.dst_start):
            raise ValueError("dense rows need unscaled targets of one axis, and a row for each")

    def write(self, job: IntArray) -> None:
        """Write the arguments of compiled code into its job."""
        job[_PLACES] = self._settings
