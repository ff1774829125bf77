"""Leases: who may see the memory of a batch, what ends that, and how far a reader may run ahead."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import Any, Final, Protocol

from rankwise.errors import ConfigError


class Done(Protocol):
    """Something to wait for, for example a CUDA event."""

    def synchronize(self) -> None:
        """Wait until it has happened."""
        ...


class _Computed:
    """A JAX array that is still being computed, wrapped as an event."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def query(self) -> bool:
        return bool(self._array.is_ready())

    def synchronize(self) -> None:
        self._array.block_until_ready()


def done_of(event: Any) -> Done | None:
    """Return something to wait for.

    Args:
        event: an event of torch or CuPy, or any object with ``synchronize()``; a JAX array, which is awaited until it
            is computed; or None.

    Raises:
        ConfigError: it is none of these.
    """
    if event is None or callable(getattr(event, "synchronize", None)):
        done: Done | None = event
        return done
    if callable(getattr(event, "block_until_ready", None)):
        return _Computed(event)
    raise ConfigError(
        f"release(event) needs an event (with synchronize()) or a JAX array, got {type(event).__name__}: the batch is "
        "released, and its memory is reused once no view of it is left"
    )


_LEFT: Final = 0
_ENDED: Final = 1


class Lease:
    """The right of a batch to its memory, or of several that share one. It ends when nothing shares the memory.

    Args:
        number: identifies the lease.
        tell: receives a message when the last holder has left, and when the lease has ended.

    Attributes:
        busy: all that must happen before the memory is refilled.
    """

    __slots__ = ("_gone", "_num_holders", "_number", "_tell", "busy")

    def __init__(self, number: int = 0, tell: Callable[[tuple[int, int]], object] | None = None) -> None:
        self._number, self._tell = number, tell
        self.busy: tuple[Done, ...] = ()
        self._num_holders = 1
        self._gone: list[None] = []  # one entry for each holder that has left; a list, because several threads append

    def hold(self) -> None:
        """Count one more holder, which must leave, too; called by a holder."""
        self._num_holders += 1

    def wait_for(self, done: Done | None) -> None:
        """Add something to wait for before the memory is refilled."""
        if done is not None:
            self.busy = (*self.busy, done)

    def leave(self) -> None:
        """Say that a holder has moved on: it keeps any remaining view on purpose, or is about to drop it."""
        # all holders append first and count afterwards, so at least one sees all of them; telling twice is fine
        self._gone.append(None)
        if self._tell is not None and len(self._gone) >= self._num_holders:
            self._tell((_LEFT, self._number))

    def __del__(self) -> None:
        # runs in any thread, at any point of other code; see `Leases`
        if self._tell is not None:
            self._tell((_ENDED, self._number))


class Leases:
    """Grants leases, so that a reader stays within the agreed memory as long as the consumer keeps no batches.

    A lease counts until it has ended. A consumer that moves on often still holds the last batch for a moment
    (``x = batch["x"]`` drops it with the next assignment); the reader waits for that. If the lease does not end while a
    consumer waits for the reader, the batch is being kept. From then on a lease counts only until it is left, and kept
    batches use memory of their own. So reader and consumer never wait for each other.

    One thread acquires at a time. All others only put messages into a queue, which needs no lock that another thread
    could hold: finalizers run in any thread, even during `acquire`, and in forked processes.

    Args:
        is_awaited: whether a consumer waits for the reader now; it calls `wake` when it begins to. May be set later.
        has_room: whether there is memory for one more batch beside those that are kept.
        no_room: makes the error to raise if a consumer waits and there is no room; None = keep waiting.
    """

    def __init__(
        self,
        *,
        is_awaited: Callable[[], bool] = lambda: True,
        has_room: Callable[[], bool] = lambda: True,
        no_room: Callable[[], Exception] | None = None,
    ) -> None:
        self.is_awaited, self._has_room, self._no_room = is_awaited, has_room, no_room
        self._news: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._out: set[int] = set()  # leases that count
        self._left: set[int] = set()  # those of them that were left and have not ended
        self._are_kept = self._closed = False

    def acquire(self, limit: int) -> Lease | None:
        """Return a lease once fewer than `limit` count; None once closed.

        Raises:
            Exception: made by `no_room`.
        """
        while True:
            while not self._news.empty():
                self._receive()
            if self._closed:
                return None
            if len(self._out) < limit:
                number = next(self._numbers)
                self._out.add(number)
                return Lease(number, self._news.put)
            awaited = self.is_awaited()
            if self._left and (self._are_kept or awaited) and self._count_no_more(awaited=awaited):
                continue
            self._receive()

    def wake(self) -> None:
        """Let a waiting `acquire` check its conditions again."""
        self._news.put(None)

    def close(self) -> None:
        """Make every `acquire` return None."""
        self._closed = True
        self._news.put(None)
        self.is_awaited = lambda: True  # the old callback may hold these leases

    def _receive(self) -> None:
        """Wait for one message and process it."""
        news = self._news.get()
        if news is None:
            return
        what, number = news
        if what == _ENDED:
            self._out.discard(number)
            self._left.discard(number)
        elif number in self._out:
            self._left.add(number)

    def _count_no_more(self, *, awaited: bool) -> bool:
        """Stop counting leases that were left: their batches are kept, and others are read beside them."""
        if not self._has_room():
            if awaited and self._no_room is not None:
                raise self._no_room()
            return False
        self._are_kept = True
        self._out -= self._left
        self._left = set()
        return True
