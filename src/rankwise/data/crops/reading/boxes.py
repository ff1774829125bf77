"""The boxes that fill one field of a batch, as arrays: which array, where, and for which samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.meta import ArrayMeta
from rankwise.errors import ConfigError

__all__ = ["FieldBoxes"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldBoxes:
    """Boxes of one shape for some samples of a field; a field whose arrays differ in their axes takes several of these.

    A sample may take several boxes (k of them, the same for all), such as one per channel; they follow each other in
    its part of the field. k times the elements of a box are the elements of a sample.

    Attributes:
        arrays: the different arrays, all of ``len(shape)`` axes.
        which: int64[n * k], array of each box, an index into `arrays`.
        starts: int64[n * k, ndim], first element of each box; may lie outside if the field pads.
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
                f"{len(self.which)} boxes of shape {list(self.shape)} want starts of shape "
                f"{[len(self.which), len(self.shape)]}, got {list(self.starts.shape)}"
            )

    def placed(self, num_samples: int) -> IntArray:
        """Return the places of the samples, int64[n], in a batch of `num_samples`."""
        return np.arange(num_samples, dtype=np.int64) if self.rows is None else self.rows
