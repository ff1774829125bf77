"""Leases: who may see the memory of a batch, what ends that, and how far a reader may be ahead."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import Any, Final, Protocol

from rankwise.errors import ConfigError

__all__ = ["Done", "Lease", "Leases", "done_of"]


class Done(Protocol):
    """Something that will have happened, such as a CUDA event."""

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class _Computed:
    """A JAX array that is still being computed, as an event."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def query(self) -> bool:
        return bool(self._array.is_ready())

    def synchronize(self) -> None:
        self._array.block_until_ready()


def done_of(event: Any) -> Done | None:
    """Return something to wait for.

    Args:
        event: an event of torch or CuPy, or anything else with ``synchronize()``; a JAX array, which is waited for
            until it is computed; or None.

    Raises:
        ConfigError: it is none of these.
    """
    if event is None or callable(getattr(event, "synchronize", None)):
        done: Done | None = event
        return done
    if callable(getattr(event, "block_until_ready", None)):
        return _Computed(event)
    raise ConfigError(
        f"release(event) takes an event (with synchronize()) or a JAX array, got {type(event).__name__}: the batch is "
        "released, and its memory is used again when nobody has a view of it"
    )


_LEFT: Final = 0
_ENDED: Final = 1


class Lease:
    """A batch's right to its memory. It ends when nothing that shares the memory is left.

    Args:
        number: which one it is.
        tell: is told when it is left, and when it has ended.

    Attributes:
        busy: what must have happened before the memory is filled again.
    """

    __slots__ = ("_number", "_tell", "busy")

    def __init__(self, number: int = 0, tell: Callable[[tuple[int, int]], object] | None = None) -> None:
        self._number, self._tell = number, tell
        self.busy: Done | None = None

    def wait_for(self, done: Done | None) -> None:
        """Let the memory wait for something more before it is filled again."""
        if done is not None:
            self.busy = done if self.busy is None else _Both(self.busy, done)

    def leave(self) -> None:
        """Say that who was to use the batch has gone on: what is still seen of it is kept by choice, or about to go."""
        if self._tell is not None:
            self._tell((_LEFT, self._number))

    def __del__(self) -> None:
        # in any thread, in the middle of anything; see `Leases`
        if self._tell is not None:
            self._tell((_ENDED, self._number))


class _Both:
    """Two things that will have happened, as one."""

    def __init__(self, first: Done, second: Done) -> None:
        self._parts = first, second

    def synchronize(self) -> None:
        for part in self._parts:
            part.synchronize()


class Leases:
    """Grants leases, so that a reader takes no more memory than was agreed while nobody keeps batches.

    A lease counts until it has ended. Who has gone on to the next batch often still looks at the last one for a moment
    (``x = batch["x"]`` drops it with the next assignment): that is waited for. If it does not end although a consumer
    waits for what is to be read, its batch is kept, and so others may be: then leases count until they are left, and
    what is kept lies in memory of its own. So a reader never waits for somebody who waits for it.

    One thread acquires at a time. All that others do is to put messages into a queue, which needs no lock that somebody
    may hold: finalizers run in any thread, also in the midst of `acquire`, and in forked processes.

    Args:
        is_awaited: whether a consumer waits for the reader now. Who begins to wait calls `wake`. May be set later.
        has_room: whether there may be memory for one more batch beside those that are kept.
        no_room: makes the error for who waits though there is no room; None = he goes on waiting.
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
        self._out: set[int] = set()  # these count
        self._left: set[int] = set()  # of these, those that are left and have not ended
        self._are_kept = self._closed = False

    @property
    def num_out(self) -> int:
        """Leases that count now, as far as the last `acquire` knew."""
        return len(self._out)

    def acquire(self, limit: int) -> Lease | None:
        """Return a lease once fewer than `limit` count; None once closed.

        Raises:
            Exception: that of `no_room`.
        """
        while True:
            while not self._news.empty():
                self._hear()
            if self._closed:
                return None
            if len(self._out) < limit:
                number = next(self._numbers)
                self._out.add(number)
                return Lease(number, self._news.put)
            awaited = self.is_awaited()
            if self._left and (self._are_kept or awaited) and self._count_no_more(awaited=awaited):
                continue
            self._hear()

    def wake(self) -> None:
        """Let who waits look again."""
        self._news.put(None)

    def close(self) -> None:
        """Let everybody who waits go, empty-handed."""
        self._closed = True
        self._news.put(None)
        self.is_awaited = lambda: True  # who waits may hold these

    def _hear(self) -> None:
        """Wait for one message and heed it."""
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
        """Let batches that are kept be: others are read beside them."""
        if not self._has_room():
            if awaited and self._no_room is not None:
                raise self._no_room()
            return False
        self._are_kept = True
        self._out -= self._left
        self._left = set()
        return True
