"""What is asked of the engine, and what it answers: `BoxRequest` and `BoxReport`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from rankwise.data.contract import BoolArray, DType, FloatArray, IntArray
from rankwise.data.store.meta import ArrayMeta
from rankwise.errors import ConfigError, DataError

__all__ = ["BoxError", "BoxReport", "BoxRequest", "Pad"]

Pad: TypeAlias = Literal["fill", "edge", "reflect"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxRequest:
    """Boxes of one shape out of arrays with the same number of axes, to be cast to one dtype: one field of a batch.

    Attributes:
        arrays: the different arrays.
        which: int64[B], for each box its array, an index into `arrays`.
        starts: int64[B, ndim], first element of each box along each axis; may be negative or past the end with `pad`.
        shape: extent of every box along each axis, all at least 1.
        dtype: dtype that comes out, in native byte order. Narrowing to integers is checked value by value.
        pad: what stands for elements outside the array: its fill value, the nearest element ("edge"), or the mirror
            image without repeating the edge ("reflect", as in ``numpy.pad``). None refuses boxes that stick out.
        scale: float64[len(arrays)] or None: elements x come out as ``x * scale + offset``, computed in float32
            (float64 where `dtype` is float64).
        offset: float64[len(arrays)] or None; given exactly when `scale` is.

    Raises:
        ConfigError: shapes do not fit together, or a box sticks out without `pad`.
    """

    arrays: tuple[ArrayMeta, ...]
    which: IntArray
    starts: IntArray
    shape: tuple[int, ...]
    dtype: DType
    pad: Pad | None = None
    scale: FloatArray | None = None
    offset: FloatArray | None = None

    def __post_init__(self) -> None:
        ndim = len(self.shape)
        if any(array.ndim != ndim for array in self.arrays):
            got = ", ".join(f"{array.place} has {array.ndim}" for array in self.arrays if array.ndim != ndim)
            raise ConfigError(f"boxes of shape {list(self.shape)} want arrays of {ndim} axes; {got}")
        if self.starts.shape != (len(self.which), ndim) or any(extent < 1 for extent in self.shape):
            raise ConfigError(
                f"a request for {len(self.which)} boxes of shape {list(self.shape)} wants starts of shape "
                f"{[len(self.which), ndim]} and extents >= 1; got starts of shape {list(self.starts.shape)}"
            )
        if self.pad is None and len(self.which):
            self._refuse_outside()

    def _refuse_outside(self) -> None:
        shapes = np.array([array.shape for array in self.arrays], dtype=np.int64)[self.which]
        outside = (self.starts < 0) | (self.starts + np.array(self.shape) > shapes)
        if outside.any():
            box, axis = (int(first[0]) for first in np.nonzero(outside))
            first = int(self.starts[box, axis])
            raise ConfigError(
                f"box {box} takes elements {first} to {first + self.shape[axis] - 1} of axis {axis} of "
                f"{self.arrays[int(self.which[box])].place}, which has {int(shapes[box, axis])}: move it inside, or "
                'choose what stands for the outside with pad="fill", "edge" or "reflect"'
            )

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.which)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxError:
    """Why one box could not be read.

    Attributes:
        box: its place in the request.
        place: array, chunk and byte range, for messages.
        error: what happened.
        damage: whether the content is damaged (such a sample may be skipped); False for trouble with the storage.
    """

    box: int
    place: str
    error: DataError
    damage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxReport:
    """How reading one request went.

    Attributes:
        valid: bool[B], False where a box could not be read; its place in the output then holds anything.
        errors: one for each box that is not valid.
        fill_chunks: chunks that are not in the store and stand for the fill value.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were decoded already.
        fill_boxes: bool[B], True where every element is the fill value because nothing was ever written there.
    """

    valid: BoolArray
    errors: tuple[BoxError, ...] = ()
    fill_chunks: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0
    fill_boxes: BoolArray
