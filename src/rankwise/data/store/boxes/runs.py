"""`Runs`: boxes of unequal length along the first axis, packed into one array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["Runs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """How far each box reaches along the first axis, and where its rows go in the output.

    Attributes:
        lengths: int64[B], rows of each box; 0 asks for nothing.
        places: int64[B], row of the output where each begins; the boxes may come in any order, with gaps between them.
        num_rows: rows of the output.

    Raises:
        ConfigError: runs overlap or leave the output.
    """

    lengths: IntArray
    places: IntArray
    num_rows: int

    def __post_init__(self) -> None:
        for name, values in (("lengths", self.lengths), ("places", self.places)):
            if values.dtype != np.int64 or values.shape != (len(self.lengths),):
                raise ConfigError(
                    f"{name} of runs want int64[{len(self.lengths)}], got {values.dtype}{list(values.shape)}"
                )
        filled = np.flatnonzero(self.lengths)  # a negative length is seen as well
        in_order = filled[np.argsort(self.places[filled])]
        begin, length = self.places[in_order], self.lengths[in_order]
        edges = np.append(begin[1:], self.num_rows)
        wrong = np.flatnonzero((length < 0) | (begin < 0) | (begin > edges) | (length > edges - begin))
        if len(wrong):
            at = int(wrong[0])
            raise ConfigError(
                f"runs want rows of their own among the {self.num_rows} of the output; run {int(in_order[at])} takes "
                f"{int(length[at])} rows from {int(begin[at])} on, where {int(edges[at])} is the next run's or the end"
            )

    @classmethod
    def packed(cls, lengths: IntArray, order: IntArray | None = None) -> Runs:
        """Return runs that follow each other without gaps.

        Args:
            lengths: int64[B].
            order: int64[B], the runs in the order in which they lie in the output; None = in their own.
        """
        ends = np.cumsum(lengths if order is None else lengths[order], dtype=np.int64)
        places = ends - (lengths if order is None else lengths[order])
        if order is not None:
            in_order, places = places, np.empty_like(places)
            places[order] = in_order
        return cls(lengths=lengths, places=places, num_rows=int(ends[-1]) if len(ends) else 0)
