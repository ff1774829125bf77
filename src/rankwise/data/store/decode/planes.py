"""Loops that cast the elements of a plane (rows of adjacent elements) and write them to the output.

Each pair of dtypes gets its own compiled loop. Loops take addresses, so that one compiled loop over chunks can
call any of them. This module imports numba: import it late.

Variants are branches on constants of the enclosing function: numba removes branches that are not taken before it
infers types, and its disk cache distinguishes variants by the values of these constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankwise.data.store.decode.machine import (
    bfloat16_bits,
    double_from_half,
    elements,
    float_from_half_bits,
    half_bits,
    half_bits_of_double,
    memcpy,
    types,
)

__all__ = ["BFLOAT16", "BOOLEAN", "HALF", "NUMBER", "PLANE_SIGNATURE", "PlaneLoop", "checked_plane", "copied_plane"]
__all__ += ["cast_plane"]

# Returns whether a value does not fit; strides are in bytes, columns in elements (in bytes for copies).
PlaneLoop = Callable[[int, int, int, int, int, int, float, float], int]
PLANE_SIGNATURE = types.int64(*[types.int64] * 6, types.float64, types.float64)

# Kinds of elements that a numba dtype does not distinguish.
NUMBER, BOOLEAN, HALF, BFLOAT16 = range(4)


def copied_plane() -> PlaneLoop:
    """Return the loop for outputs of the stored dtype."""

    def plane(  # noqa: PLR0917
        src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, _scale: float, _offset: float
    ) -> int:
        for row in range(rows):
            memcpy(dst + row * dst_stride, src + row * src_stride, cols)
        return 0

    return plane


def cast_plane(source: Any, source_is: int, target: Any, target_is: int, working: Any, *, scaled: bool) -> PlaneLoop:
    """Return the loop that casts, and scales if asked.

    Args:
        source: scalar type in memory, for example `numpy.uint16`; for half precision the type of its bits.
        source_is: `NUMBER`, `BOOLEAN` or `HALF`.
        target: scalar type in memory.
        target_is: `NUMBER`, `BOOLEAN`, `HALF` or `BFLOAT16`.
        working: intermediate float type between source and target; None = none.
        scaled: whether elements become ``x * scale + offset``, in `working`.
    """
    through = working is not None
    in_double = working is not None and working.__name__ == "float64"

    def plane(  # noqa: PLR0917
        src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, scale: float, offset: float
    ) -> int:
        if scaled:
            times, plus = working(scale), working(offset)
        for row in range(rows):
            taken = elements(src + row * src_stride, source)
            given = elements(dst + row * dst_stride, target)
            for col in range(cols):
                value = taken[col]
                if source_is == BOOLEAN:
                    real = working(value != 0) if through else value != 0
                elif source_is == HALF:
                    real = double_from_half(value) if in_double else float_from_half_bits(value)
                else:
                    real = working(value) if through else value
                done = real * times + plus if scaled else real
                if target_is == HALF:
                    given[col] = half_bits_of_double(done) if in_double else half_bits(done)
                elif target_is == BFLOAT16:
                    given[col] = bfloat16_bits(done)
                elif target_is == BOOLEAN:
                    given[col] = done != 0
                else:
                    given[col] = done
        return 0

    return plane


def checked_plane(source: Any, source_is: int, target: Any, low: Any, high: Any) -> PlaneLoop:
    """Return the loop to an integer type that may not hold every value.

    Args:
        source: scalar type in memory.
        source_is: `NUMBER` or `HALF`.
        target: integer type.
        low: for integers, the smallest valid value, as `source`; for floats, the largest float64 below all valid ones.
        high: the largest valid value, or the smallest float64 above all valid ones.
    """
    exact = source.__name__.startswith(("int", "uint")) and source_is == NUMBER

    def plane(  # noqa: PLR0917
        src: int, dst: int, rows: int, cols: int, src_stride: int, dst_stride: int, _scale: float, _offset: float
    ) -> int:
        unfit = 0
        for row in range(rows):
            taken = elements(src + row * src_stride, source)
            given = elements(dst + row * dst_stride, target)
            for col in range(cols):
                value = float_from_half_bits(taken[col]) if source_is == HALF else taken[col]
                if exact:
                    unfit |= (value < low) | (value > high)
                else:
                    unfit |= (not value > low) | (not value < high)
                given[col] = target(value)
        return unfit

    return plane
