"""A field of crops: its boxes, and checks whether its arrays fit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray, NDArray
from rankwise.data.crops.exceptions import DamacyError, DtypeMismatch, InvalidSample, RankMismatch, sample_error
from rankwise.data.store.boxes import Pad, check_conversion
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.errors import ConfigError

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
        # NumPy's numbers have another repr, and would give the same crops another fingerprint
        object.__setattr__(self, "scale", float(self.scale))
        object.__setattr__(self, "offset", float(self.offset))

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

    def scaling(self, array: ArrayMeta) -> Scaling | None:
        """Return the scaling of an array.

        Raises:
            ConfigError: there is none for this array, or the function returned another type.
        """
        rule = self.normalise
        if rule is None or isinstance(rule, Scaling):
            return rule
        if isinstance(rule, Mapping):  # by the array, else by the nearest group above it
            place = array.place
            while place and place not in rule:
                place = place.rpartition("/")[0]
            found = rule.get(place)
        else:
            found = rule(array)
        if not isinstance(found, Scaling):
            raise ConfigError(
                f"normalise= needs a Scaling for every array; for {array.place} it has "
                f"{'none' if found is None else repr(found)}"
            )
        return found


def field_specs(fields: Mapping[str, CropField]) -> dict[str, FieldSpec]:
    """Return the specs of fields and of their masks.

    Raises:
        ConfigError: a mask would have the name of a field.
    """
    specs = {name: FieldSpec(shape=field.shape, dtype=field.dtype) for name, field in fields.items()}
    for name, field in fields.items():
        if field.mask:
            if name + MASK_SUFFIX in fields:
                raise ConfigError(
                    f"the mask of field {name!r} has the name of the field {name + MASK_SUFFIX!r}: rename it"
                )
            specs[name + MASK_SUFFIX] = FieldSpec(shape=field.shape, dtype=np.dtype(np.bool_))
    return specs


def column_specs(columns: Mapping[str, NDArray]) -> dict[str, FieldSpec]:
    """Return the specs of fields whose values are in memory, one row for each sample or image."""
    return {name: FieldSpec(shape=values.shape[1:], dtype=values.dtype) for name, values in columns.items()}


def sample_bytes(specs: Mapping[str, FieldSpec]) -> int:
    """Return the bytes of one sample of all fields."""
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs.values())


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
        rows: int64[n], the places of the samples in the batch, ascending.
    """

    arrays: tuple[ArrayMeta, ...]
    which: IntArray
    starts: IntArray
    shape: tuple[int, ...]
    rows: IntArray

    @property
    def per_sample(self) -> int:
        """Number of boxes of a sample, k."""
        return len(self.which) // max(1, len(self.rows))

    def box(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return a box as ``((start, stop), ...)``."""
        starts = self.starts[number].tolist()
        return tuple((start, start + extent) for start, extent in zip(starts, self.shape, strict=True))

    def sizes(self) -> IntArray:
        """Return the shape of each box's array, int64[n * k, ndim]; the box's own if the array has other axes."""
        shapes = [array.shape if array.ndim == len(self.shape) else self.shape for array in self.arrays]
        return np.array(shapes, dtype=np.int64).reshape(len(shapes), len(self.shape))[self.which]


def unreadable(field: CropField, boxes: FieldBoxes, ids: IntArray) -> dict[int, DamacyError]:
    """Return the reasons why samples int64[B] cannot be read, by their place in the batch; one reason each."""
    found: dict[int, DamacyError] = {}

    def note(box: int, kind: type[DamacyError], why: str) -> None:
        row, uri = int(boxes.rows[box // boxes.per_sample]), boxes.arrays[int(boxes.which[box])].place
        if row not in found:
            found[row] = sample_error(kind, why, uri=uri, aabb=boxes.box(box), sample=int(ids[row]))

    for number, array in enumerate(boxes.arrays):
        reason = _whole_array(field, array, boxes)
        if reason is not None:
            for box in np.flatnonzero(boxes.which == number).tolist():
                note(box, *reason)
    if field.pad is None:
        outside = (boxes.starts < 0) | (boxes.starts + np.array(boxes.shape, dtype=np.int64) > boxes.sizes())
        for box in np.flatnonzero(outside.any(axis=1)).tolist():
            shape = list(boxes.arrays[int(boxes.which[box])].shape)
            note(
                box,
                InvalidSample,
                f"it extends beyond the array, whose shape is {shape}: move it inside or fill "
                'the outside with pad="fill", "edge" or "reflect"',
            )
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
