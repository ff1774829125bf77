"""Scales and translations: from lists of coordinate transformations to one of each per level."""

from __future__ import annotations

from typing import Any

from rankwise.data.store.meta.ngff.attributes import take, take_numbers
from rankwise.errors import DataError

__all__ = ["compose"]

Placing = tuple[tuple[float, ...], tuple[float, ...]]


def compose(*lists: Any, num_axes: int, place: str) -> Placing:
    """Return scale and translation of lists of transformations that are applied one after the other.

    ``x * scale + translation`` of the whole is what the lists do to an index x, the first list first.

    Args:
        lists: each a list of {"type": "scale" | "translation" | "identity", ...}, in the order of application.
        num_axes: number of axes of the image.
        place: where they stand, for messages.

    Raises:
        DataError: a transformation is damaged, or of a kind that is no scale and no translation.
    """
    scale, translation = (1.0,) * num_axes, (0.0,) * num_axes
    for transforms in lists:
        if not isinstance(transforms, list):
            raise DataError(f"{place} has the coordinateTransformations {transforms!r:.80}, wanted a list")
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
            f"{where} has the type {kind!r}; images here are placed by 'scale' and 'translation' alone, as "
            "OME-Zarr 0.4 and 0.5 do"
        )
    if kind not in transform and "path" in transform:
        raise DataError(
            f"{where} keeps its numbers in {transform['path']!r}, apart from the metadata; write them there"
        )
    numbers = take_numbers(transform, kind, where, len(scale))
    if kind == "translation":
        return scale, tuple(old + new for old, new in zip(translation, numbers, strict=True))
    if not all(number > 0 for number in numbers):
        raise DataError(f"{where} has the scale {list(numbers)}, wanted numbers above 0")
    return (
        tuple(old * new for old, new in zip(scale, numbers, strict=True)),
        tuple(old * new for old, new in zip(translation, numbers, strict=True)),
    )
