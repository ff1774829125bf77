"""Finds the samples of a batch that cannot be read, before anything is: the others are not to suffer."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch, InvalidSample, RankMismatch
from rankwise.data.crops.reading.boxes import FieldBoxes
from rankwise.data.crops.reading.field import CropField
from rankwise.data.store.boxes import check_conversion
from rankwise.data.store.meta import ArrayMeta
from rankwise.errors import ConfigError

__all__ = ["box_of", "box_text", "unreadable"]


def box_of(boxes: FieldBoxes, box: int) -> tuple[tuple[int, int], ...]:
    """Return box number `box` as ``((start, stop), ...)``."""
    return tuple((start, start + extent) for start, extent in zip(boxes.starts[box].tolist(), boxes.shape, strict=True))


def box_text(aabb: tuple[tuple[int, int], ...]) -> str:
    """Return a box as NumPy would write it: ``[0:64, 128:256]``."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in aabb) + "]"


def unreadable(field: CropField, boxes: FieldBoxes, ids: IntArray, rows: IntArray) -> dict[int, DamacyError]:
    """Return why samples cannot be read, by their place in the batch; one reason each.

    Args:
        field: the field.
        boxes: what is to fill it.
        ids: int64[B], numbers of the samples.
        rows: int64[n], places of the samples that `boxes` fill.
    """
    if not len(rows):
        return {}
    per_sample = len(boxes.which) // len(rows)
    found: dict[int, DamacyError] = {}
    for number, array in enumerate(boxes.arrays):
        reason = _whole_array(field, array, boxes)
        if reason is not None:
            kind, text = reason
            for box in np.flatnonzero(boxes.which == number).tolist():
                row = int(rows[box // per_sample])
                found.setdefault(row, _error(kind, text, boxes=boxes, box=box, sample=int(ids[row])))
    for box in _outside(field, boxes):
        row, array = int(rows[box // per_sample]), boxes.arrays[int(boxes.which[box])]
        text = (
            f"it sticks out of the array, whose shape is {list(array.shape)}: move it inside, or choose what stands "
            'for the outside with pad="fill", "edge" or "reflect"'
        )
        found.setdefault(row, _error(InvalidSample, text, boxes=boxes, box=box, sample=int(ids[row])))
    return found


def _whole_array(field: CropField, array: ArrayMeta, boxes: FieldBoxes) -> tuple[type[DamacyError], str] | None:
    """What is wrong with every box of an array."""
    if array.ndim != len(boxes.shape):
        return RankMismatch, (
            f"it has {len(boxes.shape)} axes and the array {array.ndim} (shape {list(array.shape)}): give one "
            "(start, stop) for each axis of the array"
        )
    try:
        scaled = field.scaling(array) is not None
    except ConfigError as error:
        return InvalidSample, str(error)
    try:
        check_conversion(array.dtype, field.dtype, scaled=scaled, place=array.place)
    except ConfigError as error:
        return DtypeMismatch, str(error)
    return None


def _outside(field: CropField, boxes: FieldBoxes) -> list[int]:
    if field.pad is not None:
        return []
    fitting = [array.ndim == len(boxes.shape) for array in boxes.arrays]
    shapes = np.array(
        [a.shape if fits else boxes.shape for a, fits in zip(boxes.arrays, fitting, strict=True)], dtype=np.int64
    ).reshape(len(boxes.arrays), len(boxes.shape))
    outside = (boxes.starts < 0) | (boxes.starts + np.array(boxes.shape, dtype=np.int64) > shapes[boxes.which])
    outside &= np.array(fitting)[boxes.which][:, None]
    return [int(box) for box in np.flatnonzero(outside.any(axis=1))]


def _error(kind: type[DamacyError], text: str, *, boxes: FieldBoxes, box: int, sample: int) -> DamacyError:
    array = boxes.arrays[int(boxes.which[box])]
    aabb = box_of(boxes, box)
    return kind(
        f"sample {sample} cannot be read: box {box_text(aabb)} of {array.place}: {text}",
        uri=array.place,
        aabb=aabb,
        sample=sample,
    )
