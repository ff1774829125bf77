"""A slow and simple reference for the fast path: read boxes with zarr-python, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.boxes import BoxError, BoxReport, BoxRequest, converted
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError


def read_plainly(request: BoxRequest, out: NDArray) -> BoxReport:
    """Fill ``out[B, *shape]`` box by box. Boxes that fail are reported, not raised."""
    valid = np.ones(len(request), dtype=np.bool_)
    errors: list[BoxError] = []
    opened = [open_plainly(array) for array in request.arrays]
    for box in range(len(request)):
        which = int(request.which[box])
        meta = request.arrays[which]
        try:
            values = _box(opened[which], meta, request.starts[box], request)
            out[box] = converted(
                values,
                request.dtype,
                scale=None if request.scale is None else float(request.scale[which]),
                offset=None if request.offset is None else float(request.offset[which]),
                place=meta.place,
            )
        except Exception as error:  # noqa: BLE001  (whatever a codec or store raises)
            valid[box] = False
            told = error if isinstance(error, DataError) else DataError(f"{type(error).__name__}: {error}")
            errors.append(BoxError(box=box, place=meta.place, error=told))
    return BoxReport(
        valid=valid,
        errors=tuple(errors),
        slow_chunks=len(request),
        missing_boxes=np.zeros(len(request), dtype=np.bool_),
        fill_boxes=np.zeros(len(request), dtype=np.bool_),
        lost_boxes=np.zeros(len(request), dtype=np.bool_),
    )


def open_plainly(meta: ArrayMeta, *, checked: bool = False) -> Any:
    """Return an array of zarr-python.

    Args:
        meta: metadata of the array.
        checked: use the store that detects truncated chunks, for which zarr-python's Blosc reads out of bounds.
    """
    import zarr
    from zarr.storage import LocalStore

    from rankwise.data.store.execution.checked_reads import CheckedStore

    store = CheckedStore(LocalStore(meta.place, read_only=True)) if checked else meta.place
    version: Any = meta.zarr_format
    return zarr.open_array(store, mode="r", zarr_format=version)


def _box(array: Any, meta: ArrayMeta, start: IntArray, request: BoxRequest) -> NDArray:
    wanted = [np.arange(first, first + extent) for first, extent in zip(start.tolist(), request.shape, strict=True)]
    if request.pad in (None, "fill"):
        return _filled(array, meta, wanted, request.shape)
    picked = [_inside(axis, size, request.pad) for axis, size in zip(wanted, meta.shape, strict=True)]
    lows = [int(axis.min()) for axis in picked]
    held = np.asarray(array[tuple(slice(low, int(axis.max()) + 1) for low, axis in zip(lows, picked, strict=True))])
    taken: NDArray = held[np.ix_(*(axis - low for low, axis in zip(lows, picked, strict=True)))]
    return taken


def _filled(array: Any, meta: ArrayMeta, wanted: list[IntArray], shape: tuple[int, ...]) -> NDArray:
    values = np.full(shape, meta.fill_value, dtype=meta.dtype)
    inside = [(axis >= 0) & (axis < size) for axis, size in zip(wanted, meta.shape, strict=True)]
    if all(axis.any() for axis in inside):
        source = tuple(slice(int(a[m].min()), int(a[m].max()) + 1) for a, m in zip(wanted, inside, strict=True))
        values[np.ix_(*(np.flatnonzero(m) for m in inside))] = array[source]
    return values


def _inside(axis: IntArray, size: int, pad: str | None) -> IntArray:
    """Return the elements that replace those outside an axis."""
    if pad == "edge" or size == 1:
        return np.clip(axis, 0, size - 1)
    period = 2 * (size - 1)
    folded = np.mod(axis, period)
    return np.where(folded < size, folded, period - folded)
