"""What one field of a batch of crops looks like, and how its elements are normalised."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias

from rankwise.data.contract import DType, FieldSpec
from rankwise.data.store.boxes import Pad
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.meta.documents import resolve_place
from rankwise.errors import ConfigError

__all__ = ["MASK_SUFFIX", "CropField", "Normalise", "Scaling", "check_normalise"]

MASK_SUFFIX = "_mask"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Elements x come out as ``x * scale + offset``, computed while they are cast.

    Attributes:
        scale: factor, finite.
        offset: summand, finite.
    """

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and math.isfinite(self.offset)):
            raise ConfigError(f"a scaling wants finite numbers, got x * {self.scale} + {self.offset}")

    @classmethod
    def standard(cls, mean: float, std: float) -> Self:
        """Return the scaling to mean 0 and standard deviation 1.

        Raises:
            ConfigError: `std` is not above 0, or a number is not finite.
        """
        if not std > 0:
            raise ConfigError(f"a standard deviation is above 0, got {std}")
        return cls(1.0 / std, -mean / std)

    @classmethod
    def unit(cls, low: float, high: float) -> Self:
        """Return the scaling that takes `low` to 0 and `high` to 1; values outside are not cut.

        Raises:
            ConfigError: `high` is not above `low`, or a number is not finite.
        """
        if not high > low:
            raise ConfigError(f"a range wants low < high, got {low} and {high}")
        return cls(1.0 / (high - low), -low / (high - low))


Normalise: TypeAlias = Scaling | Mapping[str, Scaling] | Callable[[ArrayMeta], Scaling]


def check_normalise(rule: object) -> None:
    """Refuse what cannot say how an array is normalised.

    Raises:
        ConfigError: it is no `Scaling`, no mapping of URIs to them, and no function.
    """
    if isinstance(rule, Mapping):
        known = all(isinstance(u, str | os.PathLike) and isinstance(each, Scaling) for u, each in rule.items())
    else:
        known = rule is None or isinstance(rule, Scaling) or callable(rule)
    if not known:
        raise ConfigError(
            "normalise= is a Scaling (such as Scaling.standard(mean, std)), a mapping of URIs of arrays or groups to "
            f"Scalings, or a function of an array's metadata that returns one; got {rule!r:.120}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CropField:
    """One field of a batch: boxes of one shape, cast to one dtype.

    Attributes:
        shape: shape of one sample of the field in the batch.
        dtype: dtype in the batch, native byte order.
        pad: what stands for elements outside an array: its fill value, the nearest element, the mirror image; None
            refuses boxes that stick out.
        normalise: one scaling for all arrays; one for each array, or for all arrays below a group, by URI; or a
            function of the array's metadata. None leaves the elements as they are.
        mask: whether a field ``<name>_mask``, bool of the same shape, says which elements lie inside their array.
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
        """The field for a buffer."""
        return FieldSpec(shape=self.shape, dtype=self.dtype)

    def scaling(self, array: ArrayMeta) -> Scaling | None:
        """Return the scaling of an array.

        Raises:
            ConfigError: there is none for this array, or the function returned something else.
        """
        rule = self.normalise
        if rule is None or isinstance(rule, Scaling):
            return rule
        found = _nearest(rule, array.place) if isinstance(rule, Mapping) else rule(array)
        if not isinstance(found, Scaling):
            raise ConfigError(
                f"normalise= wants a Scaling for every array; for {array.place} it has "
                f"{'none' if found is None else repr(found)}"
            )
        return found


def _nearest(rule: Mapping[str, Scaling], place: str) -> Scaling | None:
    """What is said for a place, else for the nearest group above it."""
    while place and place not in rule:
        place = place.rpartition("/")[0]
    return rule.get(place)
