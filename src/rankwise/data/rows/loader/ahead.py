"""Work that is done in the background, a little ahead of who asks for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(items: Iterator[T], work: Callable[[T], R], *, depth: int) -> Generator[R, None, None]:
    """Yield ``work(item)`` for each item, in order, working on the next while one is in use.

    Items are taken in the thread that iterates, so what makes them needs no lock. An error of an item or of its work
    is raised in its turn, after what came before it. Leaving early waits for the work under way and drops the rest.

    Args:
        items: taken up to `depth` early.
        work: runs in a thread of its own, one item at a time.
        depth: results that may be under way or waiting while one is in use; at least 1.
    """
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="rankwise-rows") as pool:

        def fill() -> None:
            while len(pending) < depth:
                try:
                    item = next(items)
                except StopIteration:
                    return
                except Exception as error:  # noqa: BLE001  (raised in its turn; a generator then ends)
                    pending.append(_failed(error))
                    return
                pending.append(pool.submit(work, item))

        try:
            fill()
            while pending:
                result = pending.popleft().result()
                fill()
                yield result
                del result  # before the next is waited for
        finally:
            for future in pending:
                future.cancel()


def _failed(error: Exception) -> Future[R]:
    future: Future[R] = Future()
    future.set_exception(error)
    return future
