"""A field of crops: its boxes, and checks whether its arrays fit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch, InvalidSample, RankMismatch
from rankwise.data.store.boxes import Pad, check_conversion
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.meta.documents import resolve_place
from rankwise.errors import ConfigError

__all__ = [
    "MASK_SUFFIX",
    "CropField",
    "FieldBoxes",
    "Normalise",
    "Scaling",
    "box_of",
    "box_text",
    "check_normalise",
    "unreadable",
]

MASK_SUFFIX = "_mask"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Elements x become ``x * scale + offset``, computed while they are cast.

    Attributes:
        scale: the factor, finite.
        offset: the summand, finite.
    """

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.offset)):
            raise ConfigError(f"a scaling needs finite numbers, got x * {self.scale} + {self.offset}")

    @classmethod
    def standard(cls, mean: float, std: float) -> Self:
        """Return the scaling to mean 0 and standard deviation 1.

        Raises:
            ConfigError: `std` is not positive, or a number is not finite.
        """
        if not std > 0:
            raise ConfigError(f"a standard deviation must be above 0, got {std}")
        return cls(1.0 / std, -mean / std)

    @classmethod
    def unit(cls, low: float, high: float) -> Self:
        """Return the scaling that maps `low` to 0 and `high` to 1; values outside are not clipped.

        Raises:
            ConfigError: `high` is not greater than `low`, or a number is not finite.
        """
        if not high > low:
            raise ConfigError(f"a range needs low < high, got {low} and {high}")
        return cls(1.0 / (high - low), -low / (high - low))


Normalise: TypeAlias = Scaling | Mapping[str, Scaling] | Callable[[ArrayMeta], Scaling]


def check_normalise(rule: object) -> None:
    """Refuse a value that does not define how to normalise an array.

    Raises:
        ConfigError: it is neither a `Scaling`, nor a mapping of URIs to them, nor a function.
    """
    if isinstance(rule, Mapping):
        known = all(isinstance(u, str | os.PathLike) and isinstance(each, Scaling) for u, each in rule.items())
    else:
        known = rule is None or isinstance(rule, Scaling) or callable(rule)
    if not known:
        raise ConfigError(
            "normalise= must be a Scaling (such as Scaling.standard(mean, std)), a mapping of array or group URIs to "
            f"Scalings, or a function of an array's metadata that returns one; got {rule!r:.120}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CropField:
    """One field of a batch: boxes of one shape, cast to one dtype.

    Attributes:
        shape: shape of one sample of the field in the batch.
        dtype: dtype in the batch, native byte order.
        pad: how to fill elements outside an array: its fill value, the nearest element, the mirror image; None
            refuses boxes that extend beyond it.
        normalise: one scaling for all arrays; one for each array, or for all arrays below a group, by URI; or a
            function of the array's metadata. None leaves the elements unchanged.
        mask: whether to make a field ``<name>_mask``, bool of the same shape, true for elements inside their array.
    """

    shape: tuple[int, ...]
    dtype: DType
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.normalise, Mapping):
            by_place = {resolve_place(uri): scaling for uri, scaling in self.normalise.items()}
            object.__setattr__(self, "normalise", by_place)

    @property
    def spec(self) -> FieldSpec:
        """Spec of the field for a buffer."""
        return FieldSpec(shape=self.shape, dtype=self.dtype)

    def scaling(self, array: ArrayMeta) -> Scaling | None:
        """Return the scaling of an array.

        Raises:
            ConfigError: there is none for this array, or the function returned another type.
        """
        rule = self.normalise
        if rule is None or isinstance(rule, Scaling):
            return rule
        found = _nearest(rule, array.place) if isinstance(rule, Mapping) else rule(array)
        if not isinstance(found, Scaling):
            raise ConfigError(
                f"normalise= needs a Scaling for every array; for {array.place} it has "
                f"{'none' if found is None else repr(found)}"
            )
        return found


def _nearest(rule: Mapping[str, Scaling], place: str) -> Scaling | None:
    """Return the entry for a place, else for the nearest group above it."""
    while place and place not in rule:
        place = place.rpartition("/")[0]
    return rule.get(place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldBoxes:
    """Boxes of one shape for some samples of a field; a field whose arrays differ in their axes needs several of these.

    A sample may have several boxes (k of them, the same for all), for example one per channel; they are adjacent in
    its part of the field. k times the elements of a box are the elements of a sample.

    Attributes:
        arrays: the distinct arrays, all with ``len(shape)`` axes.
        which: int64[n * k], array of each box, an index into `arrays`.
        starts: int64[n * k, ndim], first element of each box; may be outside if the field pads.
        shape: extent of every box along the axes of its array.
        rows: int64[n], the places of the samples in the batch, ascending; None = all of them.
    """

    arrays: tuple[ArrayMeta, ...]
    which: IntArray
    starts: IntArray
    shape: tuple[int, ...]
    rows: IntArray | None = None

    def __post_init__(self) -> None:
        if self.starts.shape != (len(self.which), len(self.shape)):
            raise ConfigError(
                f"{len(self.which)} boxes of shape {list(self.shape)} need starts of shape "
                f"{[len(self.which), len(self.shape)]}, got {list(self.starts.shape)}"
            )

    def placed(self, num_samples: int) -> IntArray:
        """Return the places of the samples, int64[n], in a batch of `num_samples`."""
        return np.arange(num_samples, dtype=np.int64) if self.rows is None else self.rows


def box_of(boxes: FieldBoxes, box: int) -> tuple[tuple[int, int], ...]:
    """Return box number `box` as ``((start, stop), ...)``."""
    return tuple((start, start + extent) for start, extent in zip(boxes.starts[box].tolist(), boxes.shape, strict=True))


def box_text(aabb: tuple[tuple[int, int], ...]) -> str:
    """Return a box as NumPy would write it: ``[0:64, 128:256]``."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in aabb) + "]"


def unreadable(field: CropField, boxes: FieldBoxes, ids: IntArray, rows: IntArray) -> dict[int, DamacyError]:
    """Return the reasons why samples cannot be read, by their place in the batch; one reason each.

    Args:
        field: the field.
        boxes: the boxes that fill it.
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
            f"it extends beyond the array, whose shape is {list(array.shape)}: move it inside or fill "
            'the outside with pad="fill", "edge" or "reflect"'
        )
        found.setdefault(row, _error(InvalidSample, text, boxes=boxes, box=box, sample=int(ids[row])))
    return found


def _whole_array(field: CropField, array: ArrayMeta, boxes: FieldBoxes) -> tuple[type[DamacyError], str] | None:
    """Return an error that affects every box of an array, if there is one."""
    if array.ndim != len(boxes.shape):
        return RankMismatch, (
            f"it has {len(boxes.shape)} axes, but the array {array.ndim} (shape {list(array.shape)}): pass one "
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
