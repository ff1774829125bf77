"""Chunks of elements of sparse rows, and those of their columns: which are done when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rankwise.data.store.reading.fast import FastChunks

__all__ = ["spread_tasks"]


def spread_tasks(elements: FastChunks, columns: FastChunks, num_threads: int) -> Iterator[Callable[[], None]]:
    """Yield pieces of work that spread elements over dense rows, in the order in which they should start.

    Args:
        elements: chunks of elements, to be spread.
        columns: as many chunks of columns, each with the targets of the one of elements in its place.
        num_threads: threads that will do them.
    """
    for first, last in elements.slabs(num_threads):
        tasks = columns.task(first, last), elements.task(first, last)
        if elements.is_near and columns.is_near:
            yield partial(_beside, elements, columns, first, last, tasks)
        else:
            yield partial(_in_turn, tasks)


def _beside(
    elements: FastChunks, columns: FastChunks, first: int, last: int, tasks: tuple[Callable[[], None], ...]
) -> None:
    if not elements.spread_beside(columns, first, last):
        _in_turn(tasks)


def _in_turn(tasks: tuple[Callable[[], None], ...]) -> None:
    for task in tasks:
        task()
