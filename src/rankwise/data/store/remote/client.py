"""Requests with retries for temporary errors, with counts, and with explanations when they are given up."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from rankwise.data.store.remote.options import Location, RemoteOptions, RemoteStats, locate
from rankwise.data.store.remote.requests import (
    Failure,
    ObjectChangedError,
    ObjectRequest,
    Part,
    TransferError,
    TruncatedError,
    classify,
    send,
)
from rankwise.data.store.remote.stores import open_store
from rankwise.data.store.stats import Tally

__all__ = ["BeyondError", "Client", "NoRangesError"]

T = TypeVar("T")


class BeyondError(Exception):
    """The object ends before the range begins. Handled by callers, never shown."""


class NoRangesError(Exception):
    """The server does not support this kind of range. Handled by callers, never shown."""


class Client:
    """Sends requests for one reader; thread-safe.

    Args:
        options: for requests.
        counters: counts the requests.
    """

    def __init__(self, options: RemoteOptions, counters: Tally[RemoteStats]) -> None:
        self.options = options
        self.counters = counters
        # of all threads: those of `Workers`, and callers that request a document themselves
        self._slots = threading.BoundedSemaphore(options.concurrency)
        self._closing = threading.Event()  # wakes every thread that waits for a further attempt
        # No lock: two threads may both find none, and `open_store` gives them the same one.
        self._stores: dict[str, Any] = {}
        # Random, so that reads hit by one failure of a store do not return together. Threads share it: a draw is
        # atomic. A separate generator: waiting must not change the random numbers of the training.
        self._jitter = random.Random()  # noqa: S311

    def close(self) -> None:
        """Send no more requests; give up those that wait for a further attempt."""
        self._closing.set()

    def request(self, request: ObjectRequest) -> Part | None:
        """Return a part of an object, None if there is no such object.

        Raises:
            BeyondError: the object ends before the range begins.
            ConfigError: the URL or the options of the store cannot work.
            NoRangesError: the server does not support this kind of range.
            ObjectChangedError: it is not the requested version.
            TransferError: the store could not be reached, or refused.
        """
        location = locate(request.url)
        store = self.store(location)
        try:
            part = self.retry(lambda: send(store, location, request), url=request.url, what=request.span)
        except (BeyondError, NoRangesError) as error:
            if request.is_part:
                raise
            self.counters.add(RemoteStats(failures=1))
            raise TransferError(
                f"{request.url} ({request.span}): the store answered as if a part had been requested", url=request.url
            ) from error
        if part is not None:
            self.counters.add(RemoteStats(fetched_bytes=part.data.nbytes))
        return part

    def store(self, location: Location) -> Any:
        """Return the store of a location; the same one until a request to it was given up.

        Raises:
            ConfigError, MissingExtraError, WorldError: as `open_store`.
        """
        store = self._stores.get(location.root)
        if store is None:
            store = self._stores[location.root] = open_store(location, self.options)
        return store

    def retry(self, call: Callable[[], T], *, url: str, what: str) -> T | None:
        """Return the result of a request, with retries for temporary errors; None if the object does not exist.

        Raises:
            BeyondError, NoRangesError, ObjectChangedError, TransferError: as `request`.
        """
        from obstore.exceptions import BaseError

        began, attempt = time.monotonic(), 0
        # Checked between attempts only: a request that was sent ends by itself, within the timeout of its client.
        while not self._closing.is_set():
            attempt += 1
            try:
                return self._once(call, retried=attempt > 1)
            except ObjectChangedError:
                self.counters.add(RemoteStats(failures=1))
                raise
            except (BaseError, OSError, ValueError, TruncatedError) as error:
                failure = classify(error)
                if failure.kind == "missing":
                    return None
                elapsed_s = time.monotonic() - began
                if not self._may_retry(failure, attempt, elapsed_s):
                    self._give_up(
                        failure, f"{url} ({what})", url=url, attempts=attempt, elapsed_s=elapsed_s, error=error
                    )
            self._wait(attempt)
        raise TransferError(f"{url} ({what}): not read, because its reader was closed", url=url, attempts=attempt)

    def _once(self, call: Callable[[], T], *, retried: bool) -> T:
        with self._slots:  # released during the pause before the next attempt: others send theirs meanwhile
            began = time.monotonic()
            try:
                return call()
            finally:
                taken_s = time.monotonic() - began
                self.counters.add(RemoteStats(requests=1, retries=int(retried), request_s=taken_s))

    def _may_retry(self, failure: Failure, attempt: int, elapsed_s: float) -> bool:
        within = attempt <= self.options.retries and elapsed_s < self.options.retry_deadline_s
        return failure.kind == "passing" and within and not self._closing.is_set()

    def _wait(self, attempt: int) -> None:
        longest_s = min(self.options.backoff_s * 2 ** (attempt - 1), self.options.max_backoff_s)
        delay_s = longest_s * self._jitter.uniform(0.5, 1.0)
        self.counters.add(RemoteStats(backoff_s=delay_s))
        self._closing.wait(delay_s)

    def _give_up(
        self, failure: Failure, where: str, *, url: str, attempts: int, elapsed_s: float, error: Exception
    ) -> NoReturn:
        if failure.kind == "beyond":
            raise BeyondError from error
        if failure.kind == "no_ranges":
            raise NoRangesError from error
        self.counters.add(RemoteStats(failures=1))
        # Credentials in the environment may be fixed before the next request; requests in flight keep their store.
        self._stores.clear()
        mend = f". {failure.mend[:1].upper()}{failure.mend[1:]}" if failure.mend else ""
        if failure.kind == "changed":
            raise ObjectChangedError(
                f"{where}: {failure.reason}. Reopen the data, and do not write to data while they are read", url=url
            ) from error
        if failure.kind == "passing":
            raise TransferError(
                f"{where}: given up after {attempts} attempt{'s' * (attempts > 1)} in {elapsed_s:.1f} s "
                f"(RemoteOptions allows {self.options.retries} retries within {self.options.retry_deadline_s:g} s); "
                f"the last: {failure.reason}{mend}",
                url=url,
                attempts=attempts,
            ) from error
        raise TransferError(
            f"{where}: the store refused the request: {failure.reason}{mend}", url=url, attempts=attempts
        ) from error
