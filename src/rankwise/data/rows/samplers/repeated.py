"""Chunks at random places, rows as often as they are drawn."""

from __future__ import annotations

from rankwise.data.rows.passes import PassDraws, RequestSizes, circle
from rankwise.data.rows.types import LoadRequest

__all__ = ["RowsRepeated"]


class RowsRepeated:
    """The load requests of a pass with replacement.

    A chunk begins at any row of the range with the same probability and goes around its end, so that every row is
    equally likely to be in it.

    Args:
        draws: random numbers of the pass.
        sizes: how many rows go together.
        start: first row of the range.
        stop: row after the last.
    """

    def __init__(self, draws: PassDraws, sizes: RequestSizes, *, start: int, stop: int) -> None:
        self._draws, self._sizes, self._start, self._stop = draws, sizes, start, stop

    def request(self, number: int, wanted: int) -> LoadRequest:
        """Return one request that hands out `wanted` rows."""
        rng, size = self._draws.request(number), self._sizes.chunk_size
        firsts = rng.integers(self._start, self._stop, -(-wanted // size)).tolist()
        runs = []
        for place, first in enumerate(firsts):
            runs += circle(first, min(size, wanted - place * size), self._start, self._stop)
        return {"requests": runs, "splits": self._sizes.cut(rng.permutation(wanted))}
