"""`RequestReader`: load requests that are read in the background, a little ahead, also over the end of a pass."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.loader.requesting import RowOrder
from rankwise.data.rows.loader.worker import SerialWorker

__all__ = ["RequestReader", "RowsReader"]

_MOST_PENDING = 2  # with the one in use, or the one before it that is still held, three pieces of memory
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class RowsReader(Protocol[T_co]):
    """Reads rows; one thread at a time."""

    def read(self, rows: IntArray) -> T_co:
        """Return rows, in their order."""
        ...


@dataclass(slots=True, eq=False)
class _Request(Generic[T]):
    order: RowOrder
    block: Future[T]
    obs: Future[Any] | None = None


class RequestReader(Generic[T]):
    """Reads the load requests of one pass after the other, with memory that passes share.

    Requests are drawn in the thread that takes them, so what draws them needs no lock. When all of a pass are drawn,
    the first one of the pass that may follow is read too; that pass gets it if its first request is the same.

    Args:
        rows: reads them.
    """

    def __init__(self, rows: RowsReader[T]) -> None:
        self._rows, self._worker, self._pid = rows, SerialWorker(), os.getpid()
        self._pending: deque[_Request[T]] = deque()
        self._early: _Request[T] | None = None
        self._orders: Iterator[RowOrder] | None = None
        self._following: Callable[[], RowOrder | None] = lambda: None

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that was forked from the one that reads."""
        return self._pid != os.getpid()

    def begin(self, orders: Iterator[RowOrder], obs: Any, following: Callable[[], RowOrder | None]) -> None:
        """Begin a pass.

        Args:
            orders: its requests, drawn up to two early.
            obs: pandas.DataFrame about all rows, or None.
            following: called when all are drawn: what the next pass will ask for first, None = not known.
        """
        self._orders, self._obs, self._following = orders, obs, following

    def fill(self) -> None:
        """Have requests read, as many as may lie ready; call it whenever a batch is asked for."""
        while self._orders is not None and len(self._pending) < _MOST_PENDING:
            try:
                order = next(self._orders)
            except StopIteration:
                self._orders = None
                self._go_on()
            except Exception as error:  # noqa: BLE001  (raised in its turn; a generator then ends)
                self._orders = None
                failed: Future[T] = Future()
                failed.set_exception(error)
                self._pending.append(_Request(RowOrder(rows=np.empty(0, dtype=np.int64), edges=(0,)), failed))
            else:
                self._pending.append(self._asked(order))

    def take(self) -> tuple[RowOrder, T, Any] | None:
        """Return the next request of the pass, its rows, and what obs says about them; None after the last.

        Raises:
            Exception: what failed in drawing or reading it.
        """
        self.fill()
        if not self._pending:
            return None
        request = self._pending.popleft()
        block = request.block.result()
        return request.order, block, None if request.obs is None else request.obs.result()

    def leave(self) -> None:
        """End the pass here: drop what was drawn, and wait for what is being read."""
        left = [request.block for request in self._pending] + [r.obs for r in self._pending if r.obs is not None]
        left += [] if self._early is None else [self._early.block]
        self._pending.clear()
        self._early = self._orders = None
        wait([future for future in left if not future.cancel()])

    def _asked(self, order: RowOrder) -> _Request[T]:
        early, self._early = self._early, None
        if early is None or not _same(early.order, order):
            if early is not None:
                early.block.cancel()
            early = self._submitted(order)
        if self._obs is not None:
            obs = self._obs
            early.obs = self._worker.submit(lambda: obs.iloc[order.rows])
        return early

    def _submitted(self, order: RowOrder) -> _Request[T]:
        rows = self._rows
        return _Request(order, self._worker.submit(lambda: rows.read(order.rows)))

    def _go_on(self) -> None:
        if self._early is None:  # else the pass had no request at all
            order = self._following()
            self._early = None if order is None else self._submitted(order)


def _same(one: RowOrder, other: RowOrder) -> bool:
    return one.edges == other.edges and np.array_equal(one.rows, other.rows)
