"""Reads that are under way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from rankwise.errors import DataError

__all__ = ["PendingReads"]

T = TypeVar("T")


class PendingReads(Generic[T]):
    """The pieces of a fetch as they arrive; thread-safe.

    Args:
        num_pieces: how many are expected.
    """

    def __init__(self, num_pieces: int) -> None:
        self._pieces: list[T | DataError | None] = [None] * num_pieces
        self._arrived: deque[int] = deque()
        self._num_missing = num_pieces
        self._crash: BaseException | None = None
        self._cancelled = False
        self._changed = threading.Condition()

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants what has not arrived."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask for nothing more. Requests that are under way end by themselves; `result` returns at once."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def deliver(self, pieces: Iterable[tuple[int, T | DataError | None]]) -> None:
        """Hand in pieces: (index, what was read, or why nothing was)."""
        with self._changed:
            for index, piece in pieces:
                self._pieces[index] = piece
                self._arrived.append(index)
                self._num_missing -= 1
            self._changed.notify_all()

    def crash(self, error: BaseException) -> None:
        """Hand in an error that is not about any piece: whoever waits gets it."""
        with self._changed:
            self._crash = error
            self._changed.notify_all()

    def result(self) -> list[T | DataError | None]:
        """Wait for all pieces and return them in the order they were asked for.

        Each is what was read, the error that kept it away, or None for an object that does not exist.

        Raises:
            DataError: it was cancelled.
            Exception: anything that is not about one piece.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._num_missing == 0 or self._ended())
            self._raise_end()
            return list(self._pieces)

    def __iter__(self) -> Iterator[tuple[int, T | DataError | None]]:
        """Yield (index, piece) in the order of arrival, each once; for one consumer.

        Raises:
            DataError: it was cancelled.
            Exception: anything that is not about one piece.
        """
        for _ in range(len(self._pieces)):
            with self._changed:
                self._changed.wait_for(lambda: bool(self._arrived) or self._ended())
                self._raise_end()
                index = self._arrived.popleft()
                piece = self._pieces[index]
            yield index, piece

    def _ended(self) -> bool:
        return self._cancelled or self._crash is not None

    def _raise_end(self) -> None:
        if self._crash is not None:
            raise self._crash
        if self._cancelled and self._num_missing:
            raise DataError("these reads were cancelled before all of them had arrived")
