"""Load requests of passes: once, or repeated without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankwise.data.contract import IntArray
from rankwise.data.rows.passes import PassDraws, RequestSizes, circle
from rankwise.data.rows.types import LoadRequest
from rankwise.world.loader_worker import current_worker

__all__ = ["make_requests"]


def make_requests(total: int, sizes: RequestSizes, make: Callable[[int, int], LoadRequest]) -> Iterator[LoadRequest]:
    """Yield the load requests of a pass that hands out `total` rows; a worker of a DataLoader yields its own only.

    Whatever the number of workers, together they yield the same requests: each is made from its number alone.

    Args:
        total: rows of the pass.
        sizes: how many rows go together.
        make: from the number of a request, and the rows that it is to hand out, to the request.
    """
    worker = current_worker()
    for number in range(-(-total // sizes.request_rows)):
        if worker is None or worker.owns(number):
            yield make(number, min(sizes.request_rows, total - number * sizes.request_rows))


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
