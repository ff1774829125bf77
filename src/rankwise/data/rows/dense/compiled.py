"""The compiled loops, one for each size of elements and indices, made when it is first needed."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable

import numpy as np

__all__ = ["compiled_spread"]

_LOG = logging.getLogger("rankwise.data")
_ELEMENTS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_INDICES = {4: np.int32, 8: np.int64}
_LOOPS: dict[tuple[int, int], Callable[..., int] | None] = {}
_LOCK = threading.Lock()


def compiled_spread(element_bytes: int, index_bytes: int) -> Callable[..., int] | None:
    """Return the loop, which runs without the interpreter's lock; None where NumPy has to do.

    Args:
        element_bytes: size of an element.
        index_bytes: size of an index, 4 or 8.
    """
    if element_bytes not in _ELEMENTS:
        return None
    key = (element_bytes, index_bytes)
    with _LOCK:
        if key not in _LOOPS:
            _LOOPS[key] = _tried(*key)
        return _LOOPS[key]


def _tried(element_bytes: int, index_bytes: int) -> Callable[..., int] | None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return None
    try:
        from rankwise.data.rows.dense.loop import SPREAD_SIGNATURE, spread_loop
        from rankwise.data.store.decode.compiling import compiled_address

        loop = spread_loop(_ELEMENTS[element_bytes], _INDICES[index_bytes])
        address, _ = compiled_address(loop, f"spread_{element_bytes}_{index_bytes}", SPREAD_SIGNATURE)
    except Exception as error:  # noqa: BLE001  (whatever goes wrong while compiling: there is another way)
        _LOG.warning("dense rows are made by NumPy, which takes longer: %s: %s", type(error).__name__, error)
        return None
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 10)(address)
