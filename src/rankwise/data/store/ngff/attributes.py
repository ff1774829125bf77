"""OME-Zarr metadata in group attributes: axes, scales and translations in all versions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of an image.

    Attributes:
        name: for example "t", "c", "z", "y", "x".
        type: "space", "time", "channel", another word, or None if not given.
        unit: for example "micrometer"; None if not given.
    """

    name: str
    type: str | None = None
    unit: str | None = None


def take(values: Any, key: str, kind: type | tuple[type, ...], place: str, default: Any = ...) -> Any:
    """Return ``values[key]``, with a check of its type.

    Args:
        values: a parsed JSON object.
        key: the key.
        kind: type, or types, that it must have.
        place: its location, for the message.
        default: replaces a missing value; without it the value is required.

    Raises:
        DataError: it is missing or has another type.
    """
    if not isinstance(values, dict):
        raise DataError(f"{place} is {values!r:.80}, expected an object")
    if key not in values:
        if default is ...:
            raise DataError(f"{place} has no {key!r}; it has {', '.join(map(repr, sorted(values))) or 'nothing'}")
        return default
    value = values[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{key!r} of {place} is {value!r:.80}, expected {wanted}")
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
        raise DataError(f"{key!r} of {place} is {found!r:.80}, expected {num_axes} numbers, one for each axis")
    return tuple(map(float, numbers))


_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_OLDEST = "tczyx"  # versions 0.1 and 0.2 do not name axes


def read_axes(multiscale: Any, place: str) -> tuple[Axis, ...]:
    """Return the axes from the metadata of a multiscale image.

    Raises:
        DataError: they are damaged, or two have the same name.
    """
    found = take_list(multiscale, "axes", place, default=list(_OLDEST))
    axes = tuple(_axis(one, f"an axis of {place}") for one in found)
    names = [axis.name for axis in axes]
    if not names or len(set(names)) != len(names):
        raise DataError(f"{place} has the axes {names}, expected one name for each")
    return axes


def plain_axes(array: ArrayMeta) -> tuple[Axis, ...]:
    """Return axes for a plain array: its dimension names, or numbers counted from the end, "-1" for the last."""
    names = [name or str(place - array.ndim) for place, name in enumerate(array.dimension_names)]
    return tuple(Axis(name=name, type=_TYPES.get(name)) for name in names)


def _axis(found: Any, place: str) -> Axis:
    if isinstance(found, str):  # version 0.3
        return Axis(name=found, type=_TYPES.get(found))
    name = take(found, "name", str, place)
    kind = take(found, "type", (str, type(None)), place, default=None)
    unit = take(found, "unit", (str, type(None)), place, default=None)
    return Axis(name=name, type=kind, unit=unit)


Placing = tuple[tuple[float, ...], tuple[float, ...]]


def compose(*lists: Any, num_axes: int, place: str) -> Placing:
    """Return scale and translation of lists of transformations that are applied in sequence.

    ``x * scale + translation`` is the result for an index x, with the first list applied first.

    Args:
        lists: each a list of {"type": "scale" | "translation" | "identity", ...}, in the order of application.
        num_axes: number of axes of the image.
        place: where they stand, for messages.

    Raises:
        DataError: a transformation is damaged, or is neither a scale, nor a translation, nor the identity.
    """
    scale, translation = (1.0,) * num_axes, (0.0,) * num_axes
    for transforms in lists:
        if not isinstance(transforms, list):
            raise DataError(f"{place} has the coordinateTransformations {transforms!r:.80}, expected a list")
        for transform in transforms:
            scale, translation = _apply(transform, scale, translation, place)
    return scale, translation


def _apply(transform: Any, scale: tuple[float, ...], translation: tuple[float, ...], place: str) -> Placing:
    where = f"a transformation of {place}"
    kind = take(transform, "type", str, where)
    if kind == "identity":
        return scale, translation
    if kind not in {"scale", "translation"}:
        raise DataError(
            f"{where} has the type {kind!r}; images must be placed by 'scale' and 'translation' only, as "
            "OME-Zarr 0.4 and 0.5 do"
        )
    if kind not in transform and "path" in transform:
        raise DataError(
            f"{where} stores its numbers in {transform['path']!r}, outside the metadata; write them into the metadata"
        )
    numbers = take_numbers(transform, kind, where, len(scale))
    if kind == "translation":
        return scale, tuple(old + new for old, new in zip(translation, numbers, strict=True))
    if not all(number > 0 for number in numbers):
        raise DataError(f"{where} has the scale {list(numbers)}, expected numbers above 0")
    return (
        tuple(old * new for old, new in zip(scale, numbers, strict=True)),
        tuple(old * new for old, new in zip(translation, numbers, strict=True)),
    )
