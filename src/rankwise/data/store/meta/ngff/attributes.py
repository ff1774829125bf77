"""Where a group keeps its OME-Zarr metadata, and careful ways to take values out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rankwise.data.store.meta.nodes import Node
from rankwise.errors import DataError

__all__ = ["ome_attributes", "take", "take_list", "take_numbers"]

_KEYS = ("multiscales", "plate", "well", "labels", "omero", "bioformats2raw.layout", "series")


def ome_attributes(node: Node) -> Mapping[str, Any]:
    """Return the OME-Zarr part of a node's attributes, empty if it has none.

    From version 0.5 on it is the attribute "ome"; before, it is spread over the attributes.

    Raises:
        DataError: "ome" is not an object.
    """
    ome = node.attributes.get("ome")
    if isinstance(ome, dict):
        return ome
    if ome is not None and node.zarr_format == 3:
        raise DataError(f"the attribute 'ome' of {node.place} is {ome!r:.80}, wanted an object")
    return {key: node.attributes[key] for key in _KEYS if key in node.attributes}


def take(values: Any, key: str, kind: type | tuple[type, ...], place: str, default: Any = ...) -> Any:
    """Return ``values[key]``, checked.

    Args:
        values: a parsed JSON object.
        key: what to take.
        kind: type, or types, that it must have.
        place: where it stands, for the message.
        default: what stands for a missing value; without one it must be there.

    Raises:
        DataError: it is missing or of another type.
    """
    if not isinstance(values, dict):
        raise DataError(f"{place} is {values!r:.80}, wanted an object")
    if key not in values:
        if default is ...:
            raise DataError(f"{place} has no {key!r}; it has {', '.join(map(repr, sorted(values))) or 'nothing'}")
        return default
    value = values[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{key!r} of {place} is {value!r:.80}, wanted {wanted}")
    return value


def take_list(values: Any, key: str, place: str, default: Any = ...) -> list[Any]:
    """Return ``values[key]``, which must be a list."""
    found: list[Any] = take(values, key, list, place, default)
    return found


def take_numbers(values: Any, key: str, place: str, num_axes: int) -> tuple[float, ...]:
    """Return ``values[key]``, which must be a list of one finite number for each axis."""
    found = take_list(values, key, place)
    numbers = [
        one for one in found if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
    ]
    if len(numbers) != len(found) or len(found) != num_axes:
        raise DataError(f"{key!r} of {place} is {found!r:.80}, wanted {num_axes} numbers, one for each axis")
    return tuple(map(float, numbers))
