"""Boxes of arrays: `BoxRequest` and `BoxReport`, runs of unequal length, and conversions of elements for batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from rankwise.data.contract import BoolArray, DType, FloatArray, IntArray, NDArray, ReadReport
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import ConfigError, DataError, SampleError

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


Pad: TypeAlias = Literal["fill", "edge", "reflect"]

_FARTHEST = 2**61  # sums of a place and an extent stay within 64 bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxRequest:
    """Boxes of one shape from arrays with equally many axes, cast to one dtype: one field of a batch.

    Attributes:
        arrays: the distinct arrays.
        which: int64[B], for each box its array, an index into `arrays`.
        starts: int64[B, ndim], first element of each box along each axis; may be negative or past the end with `pad`.
        shape: extent of every box along each axis, all at least 1.
        dtype: dtype of the output, in native byte order. Narrowing to integers is checked value by value.
        pad: replaces elements outside the array: by its fill value, the nearest element ("edge"), or the mirror
            image without repeating the edge ("reflect", as in ``numpy.pad``). None refuses boxes that extend beyond it.
        scale: float64[len(arrays)] or None: elements x become ``x * scale + offset``, computed in float32
            (float64 where `dtype` is float64).
        offset: float64[len(arrays)] or None; required exactly if `scale` is given.
        runs: for boxes of unequal length along the first axis, their lengths and places in an output of the shape
            [runs.num_rows, *shape[1:]]; `shape` is then that of one row, [1, ...], and `pad` is None.
        keep: False bypasses the reader's cache: our decoders neither look there nor store decoded chunks there.

    Raises:
        ConfigError: tables do not fit together, a box leaves its array without `pad`, or padding has nothing to use.
    """

    arrays: tuple[ArrayMeta, ...]
    which: IntArray
    starts: IntArray
    shape: tuple[int, ...]
    dtype: DType
    pad: Pad | None = None
    scale: FloatArray | None = None
    offset: FloatArray | None = None
    runs: Runs | None = None
    keep: bool = True

    def __post_init__(self) -> None:
        self._check_tables()
        if self.pad is None:
            self._refuse_outside()
        elif self.pad not in get_args(Pad):
            raise ConfigError(f"pad must be one of {', '.join(get_args(Pad))} or None, got {self.pad!r}")
        elif self.pad != "fill":
            self._refuse_empty()

    def _check_tables(self) -> None:
        ndim = len(self.shape)
        other = [f"{array.place} has {len(array.shape)}" for array in self.arrays if len(array.shape) != ndim]
        if other:
            raise ConfigError(f"boxes of shape {list(self.shape)} need arrays of {ndim} axes; {', '.join(other)}")
        if self.starts.shape != (len(self.which), ndim) or min(self.shape, default=1) < 1:
            raise ConfigError(
                f"a request for {len(self.which)} boxes of shape {list(self.shape)} needs starts of shape "
                f"{[len(self.which), ndim]} and extents >= 1; got starts of shape {list(self.starts.shape)}"
            )
        if self.which.dtype != np.int64 or self.starts.dtype != np.int64:
            raise ConfigError(f"which and starts must be int64, got {self.which.dtype} and {self.starts.dtype}")
        if len(self.which) and not 0 <= self.which.min() <= self.which.max() < len(self.arrays):
            raise ConfigError(
                f"which must hold numbers from 0 to {len(self.arrays) - 1}, one for each array; got numbers from "
                f"{self.which.min()} to {self.which.max()}"
            )
        longest = 0 if self.runs is None else int(self.runs.lengths.max(initial=0))
        far = max(longest, np.abs(self.starts).max(initial=0), -int(self.starts.min(initial=0)), *self.shape, 0)
        if far > _FARTHEST:
            raise ConfigError(f"boxes need starts and extents of at most 2^61 in magnitude, got {far}")
        if self.runs is not None and (
            len(self.runs.lengths) != len(self.which) or self.shape[:1] != (1,) or self.pad is not None
        ):
            raise ConfigError(
                f"runs need a length for each of the {len(self.which)} boxes, the shape of one row, [1, ...], and no "
                f"pad; got {len(self.runs.lengths)} lengths, the shape {list(self.shape)} and pad={self.pad!r}"
            )
        if (self.scale is None) != (self.offset is None):
            raise ConfigError("scale and offset must be given together: offset 0 or scale 1 changes nothing")
        for name, values in (("scale", self.scale), ("offset", self.offset)):
            if values is not None and (values.shape != (len(self.arrays),) or values.dtype != np.float64):
                raise ConfigError(
                    f"{name} must be float64[{len(self.arrays)}], one for each array; got {values.dtype}"
                    f"{list(values.shape)}"
                )

    def _refuse_empty(self) -> None:
        for which in np.unique(self.which).tolist():
            if 0 in self.arrays[which].shape:
                raise ConfigError(
                    f"{self.arrays[which].place} has the shape {list(self.arrays[which].shape)}: pad={self.pad!r} "
                    'repeats elements, but there are none; use pad="fill"'
                )

    def _refuse_outside(self) -> None:
        shapes = np.array([array.shape for array in self.arrays], dtype=np.int64).reshape(-1, len(self.shape))
        shapes = shapes[self.which]
        outside = (self.starts < 0) | (self.starts + self.extents > shapes)
        if outside.any():
            box, axis = (int(first[0]) for first in np.nonzero(outside))
            first = int(self.starts[box, axis])
            raise ConfigError(
                f"box {box} covers elements {first} to {first + int(self.extents[box, axis]) - 1} of axis {axis} of "
                f"{self.arrays[int(self.which[box])].place}, which has {int(shapes[box, axis])}: move it inside, or "
                'fill the outside with pad="fill", "edge" or "reflect"'
            )

    @property
    def extents(self) -> IntArray:
        """int64[B, ndim], extent of each box along each axis."""
        extents = np.empty(self.starts.shape, dtype=np.int64)
        extents[:] = self.shape
        if self.runs is not None:
            extents[:, 0] = self.runs.lengths
        return extents

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output: [B, *shape], or [runs.num_rows, *shape[1:]]."""
        return (len(self), *self.shape) if self.runs is None else (self.runs.num_rows, *self.shape[1:])

    def __len__(self) -> int:
        return len(self.which)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxError:
    """The error of one box that could not be read.

    Attributes:
        box: its place in the request.
        place: array, chunk and byte range, for messages.
        error: what happened.
        damage: whether the content is damaged (such a sample may be skipped); False for storage errors.
        unfit: whether values do not fit the requested dtype; this is not counted as damage.
    """

    box: int
    place: str
    error: DataError
    damage: bool = True
    unfit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxReport:
    """The result of reading one request.

    Attributes:
        valid: bool[B], False for a box that could not be read; its part of the output is then undefined.
        errors: one for each box that is not valid.
        fill_chunks: chunks that are not in the store, read as the fill value.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were already decoded.
        missing_boxes: bool[B], True if a needed chunk is not in the store. Not detected for arrays that only
            zarr-python reads, behind a URL or in its own stores: zarr-python returns the fill value.
        fill_boxes: bool[B], True if every element is the fill value because it was never written.
        lost_boxes: bool[B], those of `missing_boxes` where a whole file is missing: nothing records that a chunk has
            only the fill value, as the index of a shard does.
    """

    valid: BoolArray
    errors: tuple[BoxError, ...] = ()
    fill_chunks: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0
    missing_boxes: BoolArray
    fill_boxes: BoolArray
    lost_boxes: BoolArray


def sum_reports(num_samples: int, errors: Mapping[int, SampleError], reports: Sequence[BoxReport]) -> ReadReport:
    """Return the report for `Source.read`.

    Args:
        num_samples: samples of the share.
        errors: errors by place in the share; a sample at several places is reported once.
        reports: the reports of the fields.
    """
    valid = np.ones(num_samples, dtype=np.bool_)
    valid[list(errors)] = False
    first: dict[int, SampleError] = {}
    for _, error in sorted(errors.items()):
        first.setdefault(error.sample, error)
    return ReadReport(
        valid=valid,
        fill_chunks=sum(report.fill_chunks for report in reports),
        fast_chunks=sum(report.fast_chunks for report in reports),
        slow_chunks=sum(report.slow_chunks for report in reports),
        errors=tuple(first.values()),
    )
