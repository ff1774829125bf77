"""Where the crops with given numbers lie: the seam between an index and its ways of placing crops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rankwise.data.contract import IntArray

__all__ = ["Placement", "Places"]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where crops lie.

    Attributes:
        images: int64[B], number of the image of each crop.
        starts: int64[B, D], its first element along the axes of the reference.
    """

    images: IntArray
    starts: IntArray


class Placement(Protocol):
    """From numbers of crops to places: a pure function of (seed, epoch, number)."""

    @property
    def num_crops(self) -> int:
        """Crops of an epoch."""
        ...

    def places(self, ids: IntArray, *, seed: int, epoch: int) -> Places:
        """Return the places of crops int64[B]."""
        ...
