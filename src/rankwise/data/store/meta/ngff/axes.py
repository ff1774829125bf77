"""The axes of an image, in each way that versions of OME-Zarr have named them."""

from __future__ import annotations

from typing import Any

from rankwise.data.store.meta.ngff.attributes import take, take_list
from rankwise.data.store.meta.ngff.values import Axis
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError

__all__ = ["plain_axes", "read_axes"]

_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_OLDEST = "tczyx"  # versions 0.1 and 0.2 do not say it


def read_axes(multiscale: Any, place: str) -> tuple[Axis, ...]:
    """Return the axes that the metadata of a multiscale image name.

    Raises:
        DataError: they are damaged, or two have the same name.
    """
    found = take_list(multiscale, "axes", place, default=list(_OLDEST))
    axes = tuple(_axis(one, f"an axis of {place}") for one in found)
    names = [axis.name for axis in axes]
    if not names or len(set(names)) != len(names):
        raise DataError(f"{place} has the axes {names}, wanted one name for each")
    return axes


def plain_axes(array: ArrayMeta) -> tuple[Axis, ...]:
    """Return axes for a plain array: its dimension names, or its places counted from the end, "-1" for the last."""
    names = [name or str(place - array.ndim) for place, name in enumerate(array.dimension_names)]
    return tuple(Axis(name=name, type=_TYPES.get(name)) for name in names)


def _axis(found: Any, place: str) -> Axis:
    if isinstance(found, str):  # version 0.3
        return Axis(name=found, type=_TYPES.get(found))
    name = take(found, "name", str, place)
    kind = take(found, "type", (str, type(None)), place, default=None)
    unit = take(found, "unit", (str, type(None)), place, default=None)
    return Axis(name=name, type=kind, unit=unit)
