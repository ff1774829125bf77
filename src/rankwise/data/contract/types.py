"""Names for the types that the seams share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["JSON", "BoolArray", "DType", "FloatArray", "IntArray", "NDArray"]

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
NDArray: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
DType: TypeAlias = np.dtype[Any]
