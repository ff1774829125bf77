"""Selects the cast loop for a pair of dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import DType
from rankwise.data.store.boxes.values import is_float

if TYPE_CHECKING:
    from rankwise.data.store.decode.planes import PlaneLoop

_CAST = "?bBhHiIlLqQefd"


def _copies(stored: DType, wanted: DType, *, scaled: bool) -> bool:
    """Whether elements are copied to the output unchanged."""
    return stored == wanted and not scaled


def is_castable(stored: DType, wanted: DType, *, scaled: bool) -> bool:
    """Whether there is a loop for a pair of dtypes; NumPy casts all others."""
    if stored.hasobject or not (stored.isnative and wanted.isnative):
        return False
    if _copies(stored, wanted, scaled=scaled):
        return True
    if scaled and not is_float(wanted):
        return False
    return stored.char in _CAST and (wanted.char in _CAST or wanted.name == "bfloat16")


def plane_name(stored: DType, wanted: DType, *, scaled: bool) -> str:
    """Return the name of the loop for a pair."""
    if _copies(stored, wanted, scaled=scaled):
        return "copied"
    return f"{stored.name}_to_{wanted.name}{'_scaled' if scaled else ''}"


def plane_for(stored: DType, wanted: DType, *, scaled: bool) -> PlaneLoop:
    """Return the loop for a pair that `is_castable`. Needs numba."""
    from rankwise.data.store.decode import planes

    if _copies(stored, wanted, scaled=scaled):
        return planes.copied_plane()
    source, source_is = _in_memory(stored)
    target, target_is = _in_memory(wanted)
    if wanted.kind in "iu" and stored.kind != "b" and not np.can_cast(stored, wanted, "safe"):
        low, high = _limits(stored, wanted)
        return planes.checked_plane(source, source_is, target, low, high)
    working = _cast_dtype(stored, wanted, scaled=scaled)
    return planes.cast_plane(source, source_is, target, target_is, working, scaled=scaled)


def _in_memory(dtype: DType) -> tuple[Any, int]:
    from rankwise.data.store.decode import planes

    if dtype.kind == "b":
        return np.uint8, planes.BOOLEAN
    if dtype.name == "bfloat16":
        return np.uint16, planes.BFLOAT16
    if dtype.name == "float16":
        return np.uint16, planes.HALF
    # by name: NumPy has two 64-bit types on some systems
    return getattr(np, dtype.name), planes.NUMBER


def _cast_dtype(stored: DType, wanted: DType, *, scaled: bool) -> Any:
    """Return the intermediate type, as in NumPy: float32 for 16-bit targets, but float64 for half precision."""
    if scaled:
        return np.float64 if wanted == np.float64 else np.float32
    if wanted.name == "float16":
        return np.float64 if stored == np.float64 else np.float32
    if stored.name == "float16":
        return np.float64 if wanted == np.float64 else np.float32
    return np.float32 if wanted.name == "bfloat16" else None


def _limits(stored: DType, wanted: DType) -> tuple[Any, Any]:
    """Return bounds of valid values: inclusive for integers, exclusive in float64 for floats."""
    limits = np.iinfo(wanted)
    if stored.kind == "f":
        low = np.float64(limits.min) - 1
        return (low if low < limits.min else np.nextafter(low, -np.inf)), np.float64(limits.max + 1)
    mine = np.iinfo(stored)
    return stored.type(max(limits.min, mine.min)), stored.type(min(limits.max, mine.max))
