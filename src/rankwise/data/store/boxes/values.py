"""Converts elements of arrays for batches; also describes runs of unequal length, and columns of sparse rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.errors import ConfigError, DataError

_NUMBERS = "?biufc"


def check_conversion(stored: DType, wanted: DType, *, scaled: bool, place: str) -> None:
    """Refuse conversions that are impossible for any value.

    Raises:
        ConfigError: a complex array is to become real, a dtype is not numeric, or scaling is to give integers.
    """
    if stored == wanted and not scaled:
        return
    if scaled and not is_float(wanted):
        raise ConfigError(
            f"{place}: scaled elements are fractions, which cannot be read as {wanted}; use a float dtype"
        )
    if stored.kind == "c" and wanted.kind != "c":
        raise ConfigError(f"{place} holds {stored}, which cannot be read as {wanted}: it would lose its imaginary part")
    if not (stored.kind in _NUMBERS or is_float(stored)) or not (wanted.kind in _NUMBERS or is_float(wanted)):
        raise ConfigError(f"{place} holds {stored}, which cannot be read as {wanted}: use its own dtype")


def conversion_loss(stored: DType, wanted: DType, *, scaled: bool) -> str:
    """Return what an allowed conversion may lose, as a clause; "" = nothing that matters.

    It looks at dtypes only. It ignores the rounding of floats to fewer bits and of anything to 16-bit floats, which is
    expected, and all effects of scaling, because the stored numbers are not expected then.

    Args:
        stored: dtype of the array.
        wanted: dtype of the output.
        scaled: whether elements are scaled first.
    """
    if stored == wanted or stored.kind == "b" or scaled:
        return ""
    if wanted.kind == "b":
        return "every element except 0 becomes True"
    if is_float(stored) and wanted.kind in "iu":
        return "fractions are truncated towards zero"
    most = float(np.finfo(np.float16).max)
    if wanted == np.float16 and (is_float(stored) or np.iinfo(stored).max > most):
        return f"values beyond {most:,.0f} become infinite"
    if wanted.kind == "f" and stored.kind in "iu" and wanted.itemsize > 2:
        exact = 2 ** (np.finfo(wanted).nmant + 1)
        return f"integers beyond {exact:,} are rounded" if np.iinfo(stored).max > exact else ""
    return ""


def is_float(dtype: DType) -> bool:
    """Whether a dtype is a real floating-point one, including bfloat16."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def converted(
    values: NDArray, dtype: DType, *, scale: float | None = None, offset: float | None = None, place: str = ""
) -> NDArray:
    """Return values as another dtype.

    Floats round to nearest even; values that are too large become infinite. For integers and bool, only values in
    range are accepted (fractions are truncated towards zero).

    Args:
        values: any shape.
        dtype: the requested dtype.
        scale: with `offset`: return ``values * scale + offset``, computed in float32 (float64 if `dtype` is float64).
        offset: see `scale`.
        place: name of the array for messages.

    Raises:
        DataError: a value does not fit an integer dtype.
    """
    if scale is not None and offset is not None:
        working = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: NDArray = values.astype(working)
            scaled *= working.type(scale)
            scaled += working.type(offset)
            return scaled.astype(dtype, copy=False)
    if values.dtype == dtype:
        return values
    if dtype.kind in "iu":
        _refuse_out_of_range(values, dtype, place)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)


def _refuse_out_of_range(values: NDArray, dtype: DType, place: str) -> None:
    if values.size == 0 or values.dtype.kind == "b":
        return
    limits = np.iinfo(dtype)
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":  # NaN fails both comparisons; Python numbers compare exactly
        fits = float(low) > limits.min - 1 and float(high) < limits.max + 1
    else:
        fits = int(low) >= limits.min and int(high) <= limits.max
    if not fits:
        raise DataError(
            f"{place} holds values from {low} to {high}, which do not fit {dtype} ({limits.min} to {limits.max}): "
            "choose a wider dtype"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """The length of each box along the first axis, and the place of its rows in the output.

    Attributes:
        lengths: int64[B], rows of each box; 0 requests nothing.
        places: int64[B], first output row of each box; boxes may be in any order, with gaps between them.
        num_rows: rows of the output.

    Raises:
        ConfigError: runs overlap or leave the output.
    """

    lengths: IntArray
    places: IntArray
    num_rows: int

    def __post_init__(self) -> None:
        for name, values in (("lengths", self.lengths), ("places", self.places)):
            if values.dtype != np.int64 or values.shape != (len(self.lengths),):
                raise ConfigError(
                    f"{name} of runs must be int64[{len(self.lengths)}], got {values.dtype}{list(values.shape)}"
                )
        filled = np.flatnonzero(self.lengths)  # also keeps negative lengths, to find them
        in_order = filled[np.argsort(self.places[filled])]
        begin, length = self.places[in_order], self.lengths[in_order]
        edges = np.append(begin[1:], self.num_rows)
        wrong = np.flatnonzero((length < 0) | (begin < 0) | (begin > edges) | (length > edges - begin))
        if len(wrong):
            at = int(wrong[0])
            raise ConfigError(
                f"runs must not overlap among the {self.num_rows} rows of the output; run {int(in_order[at])} takes "
                f"{int(length[at])} rows from {int(begin[at])} on, but {int(edges[at])} is the next run's or the end"
            )

    @classmethod
    def packed(cls, lengths: IntArray, order: IntArray | None = None) -> Runs:
        """Return runs that follow each other without gaps.

        Args:
            lengths: int64[B].
            order: int64[B], the runs in the order of the output; None = in their own order.
        """
        ends = np.cumsum(lengths if order is None else lengths[order], dtype=np.int64)
        places = ends - (lengths if order is None else lengths[order])
        if order is not None:
            in_order, places = places, np.empty_like(places)
            places[order] = in_order
        return cls(lengths=lengths, places=places, num_rows=int(ends[-1]) if len(ends) else 0)


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
