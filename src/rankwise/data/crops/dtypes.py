"""The dtypes that batches of crops come in, by name, number or NumPy dtype."""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.errors import MissingExtraError

__all__ = ["Dtype", "DtypeLike", "parse_dtype", "resolved_dtype"]


class Dtype(enum.IntEnum):
    """Dtype of a field in the batch; `NATIVE` is that of the arrays."""

    F32 = 0
    BF16 = 1
    F16 = 2
    F64 = 3
    U8 = 4
    U16 = 5
    U32 = 6
    U64 = 7
    I8 = 8
    I16 = 9
    I32 = 10
    I64 = 11
    BOOL = 12
    NATIVE = 13


DtypeLike: TypeAlias = Dtype | str | int | np.dtype[Any] | type

_NUMPY = {
    Dtype.F32: "float32",
    Dtype.F16: "float16",
    Dtype.F64: "float64",
    Dtype.U8: "uint8",
    Dtype.U16: "uint16",
    Dtype.U32: "uint32",
    Dtype.U64: "uint64",
    Dtype.I8: "int8",
    Dtype.I16: "int16",
    Dtype.I32: "int32",
    Dtype.I64: "int64",
    Dtype.BOOL: "bool",
}
_BY_NAME = {
    **{dtype.name.lower(): dtype for dtype in Dtype},
    **{name: dtype for dtype, name in _NUMPY.items()},
    "bfloat16": Dtype.BF16,
}


def parse_dtype(wanted: DtypeLike) -> Dtype:
    """Return the dtype that is meant: a `Dtype`, its number, a name ("f32", "float32", "bf16", ...) or a NumPy dtype.

    Raises:
        InvalidArgument: it is none of these.
    """
    if isinstance(wanted, Dtype):
        return wanted
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted in list(Dtype):
        return Dtype(wanted)
    name = wanted.lower() if isinstance(wanted, str) else _name(wanted)
    if name in _BY_NAME:
        return _BY_NAME[name]
    known = ", ".join(dtype.name.lower() for dtype in Dtype)
    raise InvalidArgument(f"dtype is one of {known}, or its number or long name; got {wanted!r}")


def _name(wanted: Any) -> str:
    if wanted is None or isinstance(wanted, int | float):
        return ""
    try:
        return str(np.dtype(wanted).name)
    except TypeError:
        return ""


def resolved_dtype(dtype: Dtype, native: DType | None = None) -> DType:
    """Return the NumPy dtype.

    Args:
        dtype: which.
        native: what `Dtype.NATIVE` stands for.

    Raises:
        InvalidArgument: `NATIVE`, and nothing to stand for it.
        MissingExtraError: bfloat16, and ml_dtypes is not installed.
    """
    if dtype is Dtype.NATIVE:
        if native is None:
            raise InvalidArgument("the native dtype is known once an array was opened")
        return native
    if dtype is Dtype.BF16:
        try:
            import ml_dtypes
        except ImportError as error:
            raise MissingExtraError("bfloat16 needs ml_dtypes: pip install 'rankwise[data]'") from error
        bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY[dtype])
