"""From the elements of an array to those of a batch: which conversions there are, and the checked one in NumPy."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.errors import ConfigError, DataError

__all__ = ["check_conversion", "conversion_loss", "converted"]

_NUMBERS = "?biufc"


def check_conversion(stored: DType, wanted: DType, *, scaled: bool, place: str) -> None:
    """Refuse what cannot be converted at all, whatever the values are.

    Raises:
        ConfigError: a complex array is to become real, something is no number, or integers are to be scaled.
    """
    if stored == wanted and not scaled:
        return
    if scaled and not is_float(wanted):
        raise ConfigError(
            f"{place}: scaled elements are fractions, they cannot come out as {wanted}; take a float dtype"
        )
    if stored.kind == "c" and wanted.kind != "c":
        raise ConfigError(
            f"{place} holds {stored}, which cannot come out as {wanted}: it would lose its imaginary part"
        )
    if not (stored.kind in _NUMBERS or is_float(stored)) or not (wanted.kind in _NUMBERS or is_float(wanted)):
        raise ConfigError(f"{place} holds {stored}, which cannot come out as {wanted}: take its own dtype")


def conversion_loss(stored: DType, wanted: DType, *, scaled: bool) -> str:
    """Return what a conversion that is not refused may lose of a value, as a clause; "" = nothing that matters.

    Judged by the dtypes alone. Left out are the rounding of floats to fewer bits and of anything to floats of 16 bits,
    which is what these are, and whatever scaling does, as nobody expects the stored numbers of it.

    Args:
        stored: dtype of the array.
        wanted: dtype that comes out.
        scaled: whether elements are scaled first.
    """
    if stored == wanted or stored.kind == "b" or scaled:
        return ""
    if wanted.kind == "b":
        return "every element but 0 becomes True"
    if is_float(stored) and wanted.kind in "iu":
        return "fractions are cut towards zero"
    most = float(np.finfo(np.float16).max)
    if wanted == np.float16 and (is_float(stored) or np.iinfo(stored).max > most):
        return f"what is beyond {most:,.0f} becomes infinite"
    if wanted.kind == "f" and stored.kind in "iu" and wanted.itemsize > 2:
        exact = 2 ** (np.finfo(wanted).nmant + 1)
        return f"whole numbers beyond {exact:,} are rounded" if np.iinfo(stored).max > exact else ""
    return ""


def is_float(dtype: DType) -> bool:
    """Whether a dtype is a real floating point one, bfloat16 included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def converted(
    values: NDArray, dtype: DType, *, scale: float | None = None, offset: float | None = None, place: str = ""
) -> NDArray:
    """Return values as another dtype.

    Floats round to nearest even; what is too large becomes infinite. To integers and bool only values that fit exactly
    in range pass (fractions are cut towards zero).

    Args:
        values: any shape.
        dtype: the dtype that is wanted.
        scale: with `offset`: return ``values * scale + offset``, computed in float32 (float64 if `dtype` is float64).
        offset: see `scale`.
        place: names the array in messages.

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
    # NaN fails both comparisons; Python's own numbers compare exactly
    fits = float(low) > limits.min - 1 and float(high) < limits.max + 1 if values.dtype.kind == "f" else None
    if fits is None:
        fits = int(low) >= limits.min and int(high) <= limits.max
    if not fits:
        raise DataError(
            f"{place} holds values from {low} to {high}, which do not fit {dtype} ({limits.min} to {limits.max}): "
            "choose a wider dtype"
        )
