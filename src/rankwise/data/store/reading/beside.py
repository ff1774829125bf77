"""Chunks of elements of sparse rows, and those of their columns: which are done when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rankwise.data.contract import IntArray
from rankwise.data.store.reading.fast import FastChunks

__all__ = ["Beside"]


class Beside:
    """Spreads elements over dense rows, chunks of elements and of their columns in turn.

    Args:
        elements: chunks of elements, to be spread.
        columns: as many chunks of columns, each with the targets of the one of elements in its place.
        num_threads: threads that will do them.
    """

    def __init__(self, elements: FastChunks, columns: FastChunks, num_threads: int) -> None:
        self._elements, self._columns = elements, columns
        self._slabs = elements.slabs(num_threads)
        self._is_near = elements.is_near and columns.is_near

    def join(self, cut: IntArray) -> IntArray:
        """Return which rows of two pieces come out whole nevertheless, int64[n]; the others must be zero before.

        Args:
            cut: int64[n], targets that are one of two pieces of a row.
        """
        return self._elements.join(cut, self._slabs) if self._is_near else cut[:0]

    def tasks(self) -> Iterator[Callable[[], None]]:
        """Yield pieces of work, in the order in which they should start."""
        for first, last in self._slabs:
            tasks = self._columns.task(first, last), self._elements.task(first, last)
            if self._is_near:
                yield partial(self._beside, first, last, tasks)
            else:
                yield partial(_in_turn, tasks)

    def _beside(self, first: int, last: int, tasks: tuple[Callable[[], None], ...]) -> None:
        if not self._elements.spread_beside(self._columns, first, last):
            self._elements.part(first, last)
            _in_turn(tasks)


def _in_turn(tasks: tuple[Callable[[], None], ...]) -> None:
    for task in tasks:
        task()
