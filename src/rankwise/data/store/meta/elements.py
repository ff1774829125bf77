"""Dtypes and fill values, from JSON."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.store.meta.strict import UnusualError, is_int

__all__ = ["core_dtype", "fill_scalar", "is_core", "v2_dtype"]

_CORE = {
    dtype.name: dtype
    for dtype in map(np.dtype, ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"))
}
_V2 = {dtype.newbyteorder(">").str: dtype for dtype in _CORE.values()} | {dtype.str: dtype for dtype in _CORE.values()}
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_HEX = {4: ">e", 8: ">f", 16: ">d"}
_HEX_DIGITS = re.compile(r"0x[0-9a-fA-F]+")


def core_dtype(name: Any) -> DType:
    """Return the dtype that a version 3 document names.

    Raises:
        UnusualError: it is not one of Zarr's core set.
    """
    if type(name) is not str or name not in _CORE:
        raise UnusualError(f"dtype {name!r}")
    return _CORE[name]


def is_core(dtype: DType) -> bool:
    """Whether a dtype is one of Zarr's core set."""
    return dtype.name in _CORE and dtype.kind in "biufc"


def v2_dtype(text: Any) -> tuple[DType, bool]:
    """Return the dtype that a version 2 document names, in native byte order, and whether it is stored big-endian.

    Raises:
        UnusualError: it is no plain number, or written in a way that zarr-python itself does not write.
    """
    if type(text) is not str or text not in _V2:
        raise UnusualError(f"dtype {text!r}")
    return _V2[text], text[0] == ">"


def fill_scalar(dtype: DType, value: Any, *, zarr_format: int) -> Any:
    """Return a fill value as a value of `dtype`.

    Version 2 knows null (zero) and version 3 hexadecimal floats ("0x7fc00000"). Both know "NaN", "Infinity" and
    "-Infinity"; complex numbers are pairs.

    Raises:
        UnusualError: it is written in another way, or does not fit.
    """
    if value is None and zarr_format == 2:
        return np.zeros((), dtype)[()]
    if dtype.kind in "iu" and is_int(value):
        info = np.iinfo(dtype)
        if info.min <= value <= info.max:
            return dtype.type(value)
    elif dtype.kind == "b" and type(value) is bool:
        return np.bool_(value)
    elif dtype.kind == "f":
        return _rounded(dtype, _real(value, zarr_format))
    elif dtype.kind == "c" and type(value) is list and len(value) == 2:
        return _rounded(dtype, complex(_real(value[0], zarr_format), _real(value[1], zarr_format)))
    raise UnusualError(f"fill value {value!r}")


def _rounded(dtype: DType, value: complex) -> Any:
    with np.errstate(over="ignore"):  # 1e300 as float32 is infinity, as it is when written
        return dtype.type(value)


def _real(value: Any, zarr_format: int) -> float:
    if type(value) is float or (is_int(value) and abs(value) < 2**53):
        return float(value)
    if type(value) is str and value in _SPECIAL:
        return _SPECIAL[value]
    if type(value) is str and zarr_format == 3 and _HEX_DIGITS.fullmatch(value) and len(value) - 2 in _HEX:
        return float(struct.unpack(_HEX[len(value) - 2], bytes.fromhex(value[2:]))[0])
    raise UnusualError(f"fill value {value!r}")
