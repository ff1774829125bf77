"""A bounded queue between one reader thread and one consumer that either side can close without the other hanging."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Conveyor"]

T = TypeVar("T")


class Conveyor(Generic[T]):
    """Carries items and at most one error, in order.

    Args:
        depth: most items waiting.
        on_wait: called when the consumer begins to wait; must not wait itself.
    """

    def __init__(self, depth: int, on_wait: Callable[[], object] = lambda: None) -> None:
        self._depth, self._on_wait = depth, on_wait
        self._is_awaited = False
        self._items: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = threading.Condition()

    @property
    def closed(self) -> bool:
        """Whether the consumer has left."""
        return self._closed

    @property
    def is_awaited(self) -> bool:
        """Whether the consumer waits for an item now, and there is none."""
        return self._is_awaited and not self._items  # one that was woken may not have got the processor yet

    def put(self, item: T) -> bool:
        """Add an item, waiting for room. False once the consumer has left: the item is not taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing follows; an error is raised to the consumer after the items before it."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self) -> T | None:
        """Return the next item, waiting for it; None after the last one.

        Raises:
            BaseException: the error that ended the reader, once the items before it are taken.
        """
        with self._changed:
            if not self._items:
                self._is_awaited = True  # before it is told: who looks when he is told sees it
                self._on_wait()
                self._changed.wait_for(lambda: bool(self._items) or self._ended or self._closed)
                self._is_awaited = False
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> list[T]:
        """Leave: wakes the reader, and returns what was not taken."""
        with self._changed:
            self._closed = True
            left = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            return left
