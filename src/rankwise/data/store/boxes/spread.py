"""`Spread`: elements of sparse rows that come out in dense ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import NDArray
from rankwise.errors import ConfigError

__all__ = ["OUTSIDE", "TWICE", "Spread"]

OUTSIDE, TWICE = 1, 2  # of a row: it names a column that there is not, or one twice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """In which columns the elements of a request with runs come out, each run in a dense row of its own.

    Attributes:
        columns: uint16 or int32 [runs.num_rows], the column of each element of the packed output; anything may stand in
            those of runs that could not be read.
        num_cols: columns of the sparse rows, fewer than 2^31: one number for all arrays of the request, or one for
            each.
        places: for each of these int32[num_cols], where a column comes out in a dense row, `width` = nowhere; None =
            where it is.
        width: elements of a dense row, at least 1.

    Raises:
        ConfigError: something does not fit together.
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
                f"columns want uint16 or int32 along one axis, C-contiguous; got {self.columns.dtype}"
                f"{list(self.columns.shape)}"
            )
        tables = [None] * len(self.num_cols) if self.places is None else list(self.places)
        fits = 1 <= self.width < 2**31 and len(tables) == len(self.num_cols) >= 1
        if not (fits and all(map(self._fits, self.num_cols, tables))):
            raise ConfigError(
                f"places of {self.num_cols} columns want int32 for each of them, from 0 to {self.width}, the width of "
                "dense rows; without them there is one place for each column"
            )

    def _fits(self, num_cols: int, places: npt.NDArray[np.int32] | None) -> bool:
        if places is None:
            return num_cols == self.width
        if places.dtype != np.int32 or places.shape != (num_cols,) or not places.flags.c_contiguous:
            return False
        return num_cols == 0 or bool(0 <= places.min() <= places.max() <= self.width)
