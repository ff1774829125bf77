"""`Client`: reads objects and their parts, with retries for temporary errors, counts, and explained failures."""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from rankwise.data.store.remote.options import Location, RemoteOptions, RemoteStats, locate, open_store
from rankwise.data.store.remote.requests import (
    BeyondError,
    Failure,
    NoRangesError,
    ObjectChangedError,
    ObjectRequest,
    Part,
    TransferError,
    TruncatedError,
    classify,
    send,
)
from rankwise.data.store.stats import Tally

T = TypeVar("T")
_NAP_S = 0.1

# The interpreter, at its end, waits for the threads of pools before it does anything that is public: without this hook
# it would wait for all their further attempts. A Python without the hook does wait.
_ending = threading.Event()
getattr(threading, "_register_atexit", atexit.register)(_ending.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The folders and objects directly below a URL; may be empty, as object stores have no empty folders.

    Attributes:
        folders: URLs with objects below them, sorted.
        objects: URLs of objects, sorted.
    """

    folders: tuple[str, ...]
    objects: tuple[str, ...]


class Client:
    """Sends the requests of one reader until it is closed; thread-safe. Its threads start with the first `submit`.

    Every method that sends requests raises `ConfigError` for a URL or options that cannot work, `TransferError` if the
    store cannot be reached or refuses, and `ObjectChangedError` if an object is not the requested version, or is too
    short.

    Args:
        options: for requests.
        counters: counts the requests.
    """

    def __init__(self, options: RemoteOptions, counters: Tally[RemoteStats]) -> None:
        self.options = options
        self.counters = counters
        # of all threads: ours, and callers that request a document themselves
        self._slots = threading.BoundedSemaphore(options.concurrency)
        self._pool = ThreadPoolExecutor(options.concurrency, thread_name_prefix="rankwise-remote")
        self._closed = False
        # No lock: two threads may both find none, and `open_store` gives them the same one.
        self._stores: dict[str, Any] = {}
        # Random, so that reads hit by one failure of a store do not return together. Threads share it: a draw is
        # atomic. A separate generator: waiting must not change the random numbers of the training.
        self._jitter = random.Random()  # noqa: S311

    @property
    def is_open(self) -> bool:
        """Whether it sends requests."""
        return not (self._closed or _ending.is_set())

    def close(self) -> None:
        """Send no more requests, give up those that wait for a further attempt, and end the threads; does not wait."""
        self._closed = True
        self._pool.shutdown(wait=False)  # tasks in the queue still run, and find it closed: nobody waits in vain

    def submit(self, read: Callable[[Client], T]) -> Future[T]:
        """Read on another thread.

        Raises:
            RuntimeError: it is closed, or the program ends.
        """
        try:
            return self._pool.submit(read, self)
        except RuntimeError:  # else no thread can start
            if not self.is_open:
                raise
        # Here, then. If the pool has other threads they read it as well, in vain: it had been queued.
        done: Future[T] = Future()
        try:
            done.set_result(read(self))
        except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
            done.set_exception(error)
        return done

    def read_whole(self, url: str) -> Part | None:
        """Return an object, None if there is none."""
        return self.request(ObjectRequest(url=url))

    def read_size(self, url: str) -> Part | None:
        """Return size and version of an object without its bytes, None if there is none."""
        return self.request(ObjectRequest(url=url, what="size"))

    def read_head(self, url: str, num_bytes: int) -> Part | None:
        """Return the first bytes of an object (fewer if it has fewer), None if there is none."""
        try:
            return self.request(ObjectRequest(url=url, length=num_bytes))
        except BeyondError:  # it is empty
            return self.read_size(url)

    def read_tail(self, url: str, num_bytes: int) -> Part | None:
        """Return the last bytes of an object (fewer if it has fewer), None if there is none."""
        try:
            return self.request(ObjectRequest(url=url, start=-num_bytes))
        except (BeyondError, NoRangesError):  # it is empty, or the store cannot count from the end (Azure)
            whole = self.read_size(url)
        if whole is None or whole.size == 0:
            return whole
        length = min(num_bytes, whole.size)
        return self.request(ObjectRequest(url=url, start=whole.size - length, length=length, etag=whole.etag))

    def read_part(self, url: str, start: int, length: int | None) -> Part | None:
        """Return bytes of an object from `start` on, up to the end without a `length`; None if there is none."""
        request = ObjectRequest(url=url, start=start, length=length)
        part = self.request(request)
        if part is not None and length is not None and part.data.nbytes < length:
            raise request.past_end(part.size)
        return part

    def request(self, request: ObjectRequest, *, count_wanted: bool = True) -> Part | None:
        """Return what is requested of an object, None if there is no such object.

        Args:
            request: the request.
            count_wanted: whether all its bytes are wanted.

        Raises:
            BeyondError: the object ends before the range begins.
            NoRangesError: the server does not support this kind of range.
        """
        location = locate(request.url)
        store = self._store(location)
        part = self._retry(lambda: send(store, location, request), request)
        if part is not None:
            wanted_bytes = part.data.nbytes if count_wanted else 0
            self.counters.add(RemoteStats(fetched_bytes=part.data.nbytes, wanted_bytes=wanted_bytes))
        return part

    def list_below(self, url: str) -> Listing:
        """Return the folders and objects directly below a URL.

        Raises:
            TransferError: also if the store does not support listings (most web servers).
        """
        location = locate(url)
        store, is_web = self._store(location), location.kind == "http"
        try:
            found = self._retry(
                lambda: store.list_with_delimiter(location.path or None), ObjectRequest(url=url, what="listing")
            )
        except TransferError as error:
            if not is_web:
                raise
            raise TransferError(
                f"{url}: a plain web server cannot list objects; name the arrays one by one ({error})", url=url
            ) from error
        if found is None:
            return Listing(folders=(), objects=())

        def urls(paths: Iterable[str]) -> tuple[str, ...]:
            return tuple(sorted(f"{location.root}/{quote(path) if is_web else path}" for path in paths))

        return Listing(folders=urls(found["common_prefixes"]), objects=urls(each["path"] for each in found["objects"]))

    def _store(self, location: Location) -> Any:
        """Return the store of a location; the same one until a request to it was given up."""
        store = self._stores.get(location.root)
        if store is None:
            store = self._stores[location.root] = open_store(location, self.options)
        return store

    def _retry(self, call: Callable[[], T], request: ObjectRequest) -> T | None:
        """Return the result of a call, with retries for temporary errors; None if the object does not exist."""
        from obstore.exceptions import BaseError

        began, attempt = time.monotonic(), 0
        # Checked between attempts only: a request that was sent ends by itself, within the timeout of its client.
        while self.is_open:
            attempt += 1
            try:
                return self._once(call, retried=attempt > 1)
            except ObjectChangedError:
                self.counters.add(RemoteStats(failures=1))
                raise
            except (BaseError, OSError, ValueError, TruncatedError) as error:
                failure, elapsed_s = classify(error), time.monotonic() - began
                if failure.kind == "missing":
                    return None
                within = attempt <= self.options.retries and elapsed_s < self.options.retry_deadline_s
                if not (failure.kind == "passing" and within and self.is_open):
                    self._give_up(failure, request, attempts=attempt, elapsed_s=elapsed_s, error=error)
            self._wait(attempt)
        where = f"{request.url} ({request.span})"
        raise TransferError(f"{where}: not read, because its reader was closed", url=request.url, attempts=attempt)

    def _once(self, call: Callable[[], T], *, retried: bool) -> T:
        with self._slots:  # released during the pause before the next attempt: others send theirs meanwhile
            began = time.monotonic()
            try:
                return call()
            finally:
                taken_s = time.monotonic() - began
                self.counters.add(RemoteStats(requests=1, retries=int(retried), request_s=taken_s))

    def _wait(self, attempt: int) -> None:
        longest_s = min(self.options.backoff_s * 2 ** (attempt - 1), self.options.max_backoff_s)
        delay_s = longest_s * self._jitter.uniform(0.5, 1.0)
        self.counters.add(RemoteStats(backoff_s=delay_s))
        # In naps, not on an event: garbage collection in any thread, this one too, may close this client, and the lock
        # of an event is not reentrant.
        until = time.monotonic() + delay_s
        while self.is_open and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _NAP_S))

    def _give_up(
        self, failure: Failure, request: ObjectRequest, *, attempts: int, elapsed_s: float, error: Exception
    ) -> NoReturn:
        url, where = request.url, f"{request.url} ({request.span})"
        if request.is_part and failure.kind == "beyond":
            raise BeyondError(
                f"{url}: requested {request.span}, but the object is shorter: it was truncated or replaced", url=url
            ) from error
        if request.is_part and failure.kind == "no_ranges":
            raise NoRangesError(
                f"{url}: the server sends whole objects only, but parts are needed: use a server that supports "
                "range requests, or copy the data to a disk",
                url=url,
            ) from error
        self.counters.add(RemoteStats(failures=1))
        # Credentials in the environment may be fixed before the next request; requests in flight keep their store.
        self._stores.clear()
        if failure.kind == "changed":
            raise ObjectChangedError(
                f"{where}: {failure.reason}. Reopen the data, and do not write to data while they are read", url=url
            ) from error
        told = "the store refused the request"
        if failure.kind == "passing":
            told = (
                f"given up after {attempts} attempt{'s' * (attempts > 1)} in {elapsed_s:.1f} s "
                f"(RemoteOptions allows {self.options.retries} retries within {self.options.retry_deadline_s:g} s); "
                "the last"
            )
        mend = f". {failure.mend[:1].upper()}{failure.mend[1:]}" if failure.mend else ""
        raise TransferError(f"{where}: {told}: {failure.reason}{mend}", url=url, attempts=attempts) from error
