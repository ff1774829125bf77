"""Whether numbers that were read of a long array can be what was written, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol, TypeAlias

import numpy as np

from rankwise.data.contract import IntArray

__all__ = ["AnyNumbers", "Ask", "Judge", "PointerJudge"]

Ask: TypeAlias = Callable[[int], int | None]


class Judge(Protocol):
    """Looks at numbers of one array."""

    def is_sound(self, page: IntArray, first: int, chunk: int) -> bool:
        """Whether nothing is wrong at first sight.

        Args:
            page: int64[n], whole chunks, the last one perhaps shorter.
            first: place of the first of them in the array.
            chunk: numbers of a chunk.
        """
        ...

    def problems(self, page: IntArray, first: int, chunk: int, unread: Container[int], ask: Ask) -> dict[int, str]:
        """Return what is wrong, by the number of the chunk.

        Args:
            page: as above.
            first: as above.
            chunk: as above.
            unread: numbers of chunks that could not be read, whose places hold anything.
            ask: tells the number at a place of the array, None if it cannot be read.
        """
        ...


class AnyNumbers:
    """Implements `Judge`: they may be anything."""

    def is_sound(self, page: IntArray, first: int, chunk: int) -> bool:  # noqa: ARG002
        """True."""
        return True

    def problems(
        self, page: IntArray, first: int, chunk: int, unread: Container[int], ask: Ask  # noqa: ARG002
    ) -> dict[int, str]:  # fmt: skip
        """Return nothing."""
        return {}


class PointerJudge:
    """Implements `Judge` for row pointers: they never fall, begin at 0, and end with the elements.

    A chunk that is not in a store is read as zeros. These are true where all rows up to its end are empty: before the
    first chunk that is not all zeros, which then does not begin with more elements than one row can have.

    Args:
        num_rows: rows of the matrix; there is one number more.
        num_elements: elements of the matrix.
        num_cols: most elements of a row; None = not known.
    """

    def __init__(self, *, num_rows: int, num_elements: int, num_cols: int | None) -> None:
        self._num_rows, self._num_elements, self._num_cols = num_rows, num_elements, num_cols
        self._first_filled: tuple[int, int] | None = None  # place of the first chunk with another number, its first one

    def is_sound(self, page: IntArray, first: int, chunk: int) -> bool:
        """Whether nothing is wrong at first sight."""
        # chunks of zeros come before all others
        return not self._wrong(page, first) and not (self._num_elements and _is_blank(page[:chunk]) and chunk > 1)

    def problems(self, page: IntArray, first: int, chunk: int, unread: Container[int], ask: Ask) -> dict[int, str]:
        """Return what is wrong, by the number of the chunk. Where two do not fit, either may be to blame: both are."""
        found: dict[int, str] = {}
        last: list[tuple[int, int]] = []  # of chunks that seem sound: number of the chunk, its last number
        for start in range(0, len(page), chunk):
            part, place = page[start : start + chunk], first + start
            number = place // chunk
            if number in unread:
                continue
            what = self._wrong(part, place)
            if not what and self._num_elements and _is_blank(part) and self._is_lost(place, chunk, ask):
                what = f"row {place} and those behind it would be empty"
            if what:
                found[number] = what
            elif last and part[0] < last[-1][1]:
                before, _ = last.pop()
                found[before] = found[number] = f"row {place - 1} would begin after it ends"
            else:
                last.append((number, int(part[-1])))
        return found

    def _wrong(self, numbers: IntArray, first: int) -> str:
        falls = np.flatnonzero(np.diff(numbers) < 0)
        last = first + len(numbers) - 1
        if len(falls):
            return f"row {first + int(falls[0])} would begin after it ends"
        if numbers[0] < 0 or (first == 0 and numbers[0] != 0):
            return f"row {first} would begin at element {numbers[0]}"
        if numbers[-1] > self._num_elements or (last == self._num_rows and numbers[-1] != self._num_elements):
            return f"row {max(0, last - 1)} would end at element {numbers[-1]} of {self._num_elements}"
        return ""

    def _is_lost(self, place: int, chunk: int, ask: Ask) -> bool:
        """Whether zeros from a place on stand for a chunk that is not there."""
        if self._first_filled is None:
            self._first_filled = self._find_filled(chunk, ask)
        filled, number = self._first_filled
        return place > filled or (self._num_cols is not None and number > self._num_cols)

    def _find_filled(self, chunk: int, ask: Ask) -> tuple[int, int]:
        for start in range(0, self._num_rows + 1, chunk):
            if ask(min(start + chunk - 1, self._num_rows)):
                return start, ask(start) or 0
        return -1, 0


def _is_blank(numbers: IntArray) -> bool:
    return not numbers[-1] and not numbers[0]
