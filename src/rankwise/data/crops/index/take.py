"""`Take`: what a field of a crop takes from an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import DType
from rankwise.data.crops.dtypes import Dtype, DtypeLike, parse_dtype, resolved_dtype
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.crops.reading import Scaling
from rankwise.data.crops.reading.field import Normalise, check_normalise
from rankwise.data.store.boxes import Pad
from rankwise.errors import ConfigError

__all__ = ["Take"]


@dataclass(frozen=True, slots=True)
class Take:
    """What one field of every crop takes from its image.

    The first field of an index is the reference: crops are placed on its array, and the boxes of the other fields
    cover the same place in space, in elements of their own.

    Attributes:
        part: the part of the image: "image", the name of a label image, a key of the mapping of arrays that was given;
            None = the name of the field.
        channel: a channel by name or number (its axis is then dropped), several of them in that order, or None = all.
        level: resolution level, 0 is the finest. None = the index's level for the reference; for other fields the level
            whose spacing is nearest to the reference's.
        shape: extent along the cropped axes in elements of this field's array, around the same centre; None = the same
            extent in space as the reference.
        dtype: dtype in the batch, named as in `Config` ("f32", "bf16", "i8" of one byte, "native" = that of the arrays)
            or a NumPy dtype. None = float32 for the first field of an index and where elements are normalised, that of
            the arrays for other fields.
        pad: what stands for elements outside an array: "fill", "edge", "reflect"; None = nothing may lie outside.
        normalise: a `Scaling`, one for each array (or for all arrays below a group) by URI, or a function of the
            array's metadata; asked for all arrays when the index is made.
        mask: also make a field ``<name>_mask`` that says which elements lie inside the array.

    Raises:
        ConfigError: a value is out of range.
    """

    part: str | None = None
    channel: str | int | Sequence[str | int] | None = None
    level: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: npt.DTypeLike | None = None
    pad: Pad | None = None
    normalise: Normalise | None = None
    mask: bool = False

    def __post_init__(self) -> None:
        if self.pad not in (None, "fill", "edge", "reflect"):
            raise ConfigError(f'pad is "fill", "edge", "reflect" or None, got {self.pad!r}')
        if self.shape is not None and not all(extent >= 1 for extent in self.shape):
            raise ConfigError(f"a shape has extents of at least 1, got {list(self.shape)}")
        if self.channel is not None and not isinstance(self.channel, str | int) and len(self.channel) == 0:
            raise ConfigError("channel is one channel, several, or None for all; got an empty list")
        check_normalise(self.normalise)
        if self.dtype is not None:
            _dtype(self.dtype)

    @property
    def is_native(self) -> bool:
        """Whether elements keep the dtype of their array."""
        return self.normalise is None if self.dtype is None else _dtype(self.dtype) is None

    def chosen_dtype(self, stored: DType) -> DType:
        """Return the dtype in the batch for arrays of dtype `stored`."""
        if self.dtype is not None:
            return _dtype(self.dtype) or stored
        return np.dtype(np.float32) if self.normalise is not None else stored

    def described(self) -> tuple[object, ...]:
        """Return what decides the content of the field, for a fingerprint."""
        rule = self.normalise
        scaling = (rule.scale, rule.offset) if isinstance(rule, Scaling) else rule is not None
        channels = self.channel if self.channel is None or isinstance(self.channel, str | int) else list(self.channel)
        dtype = "None" if self.dtype is None else str(_dtype(self.dtype))
        return self.part, channels, self.level, self.shape, dtype, self.pad, scaling, self.mask


def _dtype(wanted: npt.DTypeLike) -> DType | None:
    """The words of `Config` come first: to NumPy alone "i8" has eight bytes, and "f16" sixteen. None = "native"."""
    try:
        word = parse_dtype(cast("DtypeLike", wanted))
        return None if word is Dtype.NATIVE else resolved_dtype(word)
    except InvalidArgument as error:
        try:
            dtype: DType = np.dtype(wanted)
        except TypeError:
            raise error from None
        return dtype
