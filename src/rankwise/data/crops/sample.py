"""`Sample`: one crop that a user requests, and the dtypes of its fields."""

from __future__ import annotations

import contextlib
import enum
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import DType, whole_number
from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.errors import needs_extra

AABB: TypeAlias = tuple[tuple[int, int], ...]
Channel: TypeAlias = "str | int | Sequence[str | int] | None"


@dataclass(frozen=True, slots=True)
class Crop:
    """One box of one array.

    Attributes:
        uri: path or URL of an array, or of an NGFF image (a group with several levels).
        aabb: ``(start, stop)`` or a slice for each axis, in storage order; ``np.s_[0:64, 128:256]`` is one. Stored
            as ``((start, stop), ...)``. With `channel` the channel axis is left out.
        level: level of an image, 0 is the finest; None = 0.
        channel: a channel by name or number (its axis is dropped), or several in that order; None = in `aabb`.

    Raises:
        InvalidArgument: the box is invalid.
    """

    uri: str
    aabb: AABB
    level: int | None = field(default=None, kw_only=True)
    channel: str | int | tuple[str | int, ...] | None = field(default=None, kw_only=True)

    def __init__(
        self,
        uri: str | os.PathLike[str],
        aabb: Iterable[Any] | slice,
        *,
        level: int | None = None,
        channel: Channel = None,
    ) -> None:
        try:
            text = str(os.fspath(uri))
        except TypeError:
            raise InvalidArgument(f"a sample's uri must be a path or URL, got {type(uri).__name__} {uri!r}") from None
        level = None if level is None else whole_number("level", level, error=InvalidArgument)
        chosen = plain_channel(channel)
        if chosen == ():
            raise InvalidArgument(f"channel= of {text} is empty: name one or more channels, or omit it")
        object.__setattr__(self, "uri", text)
        object.__setattr__(self, "aabb", _box(aabb, text))
        object.__setattr__(self, "level", level)
        object.__setattr__(self, "channel", chosen)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the box along each axis."""
        return tuple(stop - start for start, stop in self.aabb)


@dataclass(frozen=True, slots=True)
class Sample(Crop):
    """One sample: a box of one array, and its additional data. Hashable; equal samples read the same voxels.

    Attributes:
        uri, aabb, level, channel: see `Crop`.
        also: boxes for the further fields of the configuration, by their names, for example a label volume.
        label: a number, a text, or a (nested) sequence of numbers; batches stack them to ``batch.labels``.
        meta: any object; returned in ``batch.meta``. Ignored when samples are compared.
        key: seed of the sample's random draws; None = derived from the stream's seed, the rank and the sample's number.

    Raises:
        InvalidArgument: the box is invalid, or a value has another type.
    """

    also: tuple[tuple[str, Crop], ...] = field(default=(), kw_only=True)
    label: Any = field(default=None, kw_only=True)
    meta: Any = field(default=None, kw_only=True, compare=False)
    key: int | None = field(default=None, kw_only=True)

    def __init__(
        self,
        uri: str | os.PathLike[str],
        aabb: Iterable[Any] | slice,
        *,
        level: int | None = None,
        channel: Channel = None,
        also: Mapping[str, Crop] | Iterable[tuple[str, Crop]] = (),
        label: Any = None,
        meta: Any = None,
        key: int | None = None,
    ) -> None:
        Crop.__init__(self, uri, aabb, level=level, channel=channel)
        pairs = tuple(also.items() if isinstance(also, Mapping) else also)
        for name, crop in pairs:
            if not isinstance(name, str) or type(crop) is not Crop:
                raise InvalidArgument(f"also= must map names of fields to Crop(uri, aabb), got {name!r}: {crop!r}")
        object.__setattr__(self, "also", tuple(sorted(pairs, key=lambda pair: pair[0])))
        object.__setattr__(self, "label", _plain(label))
        object.__setattr__(self, "meta", meta)
        key = None if key is None else whole_number("key", key, error=InvalidArgument)
        object.__setattr__(self, "key", key)

    @property
    def crop(self) -> Crop:
        """The sample's box, without its additional data."""
        return Crop(self.uri, self.aabb, level=self.level, channel=self.channel)


def plain_channel(channel: Channel) -> str | int | tuple[str | int, ...] | None:
    """Return a choice of channels without NumPy's integers, several of them as a tuple."""
    if channel is None or isinstance(channel, str):
        return channel
    if isinstance(channel, int | np.integer):
        return int(channel)
    try:
        return tuple(one if isinstance(one, str) else operator.index(one) for one in channel)
    except TypeError:
        raise InvalidArgument(f"channel= must be names or whole numbers of channels, got {channel!r}") from None


def _box(aabb: Any, uri: str) -> AABB:
    axes = (aabb,) if isinstance(aabb, slice) else aabb
    if isinstance(axes, str) or not isinstance(axes, Iterable):
        raise InvalidArgument(f"a box must be one (start, stop) or slice for each axis, got {aabb!r} for {uri}")
    box = tuple(_interval(axis, number, uri) for number, axis in enumerate(axes))
    if not box:
        raise InvalidArgument(f"a box needs at least one axis; the one for {uri} is empty")
    return box


def _interval(axis: Any, number: int, uri: str) -> tuple[int, int]:
    if isinstance(axis, slice):
        if axis.step not in (None, 1) or axis.stop is None:
            raise InvalidArgument(
                f"axis {number} of the box for {uri} is {axis}: a slice needs a stop and no step (start None is 0)"
            )
        axis = (axis.start or 0, axis.stop)
    try:
        start, stop = (operator.index(edge) for edge in axis)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"axis {number} of the box for {uri} is {axis!r}: pass (start, stop) or a slice, of integers"
        ) from None
    if stop <= start:
        raise InvalidArgument(
            f"axis {number} of the box for {uri} runs from {start} to {stop}: stop must be above start"
        )
    return start, stop


def _plain(label: Any) -> Any:
    """Return arrays and lists as nested tuples, so that samples hash; NumPy scalars as Python's own."""
    if isinstance(label, np.ndarray | np.generic):
        label = label.tolist()
    if isinstance(label, list | tuple):
        return tuple(_plain(part) for part in label)
    if hasattr(label, "tolist"):  # tensors
        return _plain(label.tolist())
    return label


class Dtype(enum.IntEnum):
    """Dtype of a field in the batch; `NATIVE` is the dtype of the arrays."""

    F32 = 0
    BF16 = 1
    F16 = 2
    F64 = 3
    U8 = 4
    U16 = 5
    U32 = 6
    U64 = 7
    I8 = 8
    I16 = 9
    I32 = 10
    I64 = 11
    BOOL = 12
    NATIVE = 13


DtypeLike: TypeAlias = Dtype | str | int | np.dtype[Any] | type

_KINDS = {"F": "float", "U": "uint", "I": "int"}
_NUMPY = {dtype: _KINDS[dtype.name[0]] + dtype.name[1:] for dtype in Dtype if dtype.name[0] in _KINDS}
_NUMPY[Dtype.BOOL] = "bool"
_BY_NAME = {
    **{dtype.name.lower(): dtype for dtype in Dtype},
    **{name: dtype for dtype, name in _NUMPY.items()},
    "bfloat16": Dtype.BF16,
}


def parse_dtype(wanted: DtypeLike) -> Dtype:
    """Return the dtype for a `Dtype`, its number, a name ("f32", "float32", "bf16", ...) or a NumPy dtype.

    Raises:
        InvalidArgument: it is none of these.
    """
    if isinstance(wanted, Dtype):
        return wanted
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted in list(Dtype):
        return Dtype(wanted)
    name = wanted.lower() if isinstance(wanted, str) else ""
    if wanted is not None and not isinstance(wanted, str | int | float):
        with contextlib.suppress(TypeError):
            name = np.dtype(wanted).name
    if name in _BY_NAME:
        return _BY_NAME[name]
    known = ", ".join(dtype.name.lower() for dtype in Dtype)
    raise InvalidArgument(f"dtype must be one of {known}, or its number or long name; got {wanted!r}")


def resolved_dtype(dtype: Dtype, native: DType | None = None) -> DType:
    """Return the NumPy dtype; `native` is the meaning of `Dtype.NATIVE`.

    Raises:
        InvalidArgument: `dtype` is `NATIVE`, and `native` is None.
        MissingExtraError: bfloat16, and ml_dtypes is not installed.
    """
    if dtype is Dtype.NATIVE:
        if native is None:
            raise InvalidArgument("the native dtype is known only after an array was opened")
        return native
    if dtype is Dtype.BF16:
        with needs_extra("bfloat16 needs ml_dtypes: pip install 'rankwise[data]'"):
            import ml_dtypes
        bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY[dtype])
