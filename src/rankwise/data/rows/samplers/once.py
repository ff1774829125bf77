"""Chunks in random order, each row once."""

from __future__ import annotations

from rankwise.data.contract import IntArray
from rankwise.data.rows.passes import PassDraws, RequestSizes, circle
from rankwise.data.rows.types import LoadRequest

__all__ = ["RowsOnce"]


class RowsOnce:
    """The load requests of a shuffled pass.

    Args:
        draws: random numbers of the pass.
        sizes: how many rows go together.
        start: first row of the range.
        stop: row after the last.
        is_part: whether the pass ends before all rows came. The chunks are then cut from a random row on, around the
            end, so that all rows are equally likely; otherwise from the first row on, where chunks of the store begin.
    """

    def __init__(self, draws: PassDraws, sizes: RequestSizes, *, start: int, stop: int, is_part: bool) -> None:
        rng = draws.whole()
        self._draws, self._sizes, self._start, self._stop = draws, sizes, start, stop
        self._short = (stop - start) % sizes.chunk_size
        self._order: IntArray = rng.permutation(-(-(stop - start) // sizes.chunk_size))
        self._is_part = is_part
        self._turn = int(rng.integers(stop - start)) if is_part else 0

    def request(self, number: int, wanted: int) -> LoadRequest:
        """Return one request that hands out `wanted` rows, drawn evenly from those of its chunks."""
        count = self._sizes.preload_nchunks
        runs, size = [], 0
        for chunk in self._order[number * count : (number + 1) * count].tolist():
            first, length = self._chunk(chunk)
            size += length
            runs += circle(first, length, self._start, self._stop)
            if self._is_part and size >= wanted:
                break
        places: IntArray = self._draws.request(number).permutation(size)[:wanted]
        return {"requests": runs, "splits": self._sizes.cut(places)}

    def _chunk(self, chunk: int) -> tuple[int, int]:
        """First row and length of a chunk; those behind the short one begin earlier by what it lacks."""
        size, last = self._sizes.chunk_size, int(self._order[-1])
        is_short = self._short > 0 and chunk == last
        first = chunk * size - (size - self._short if self._short > 0 and chunk > last else 0)
        length = self._stop - self._start
        return self._start + (first + self._turn) % length, self._short if is_short else size
