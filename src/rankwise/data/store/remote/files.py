"""`RemoteFiles`: a reader's interface to object stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from rankwise.data.store.remote.client import Client
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, locate
from rankwise.data.store.remote.parts import (
    Listing,
    RemoteRange,
    interleave,
    join_ranges,
    list_below,
    read_head,
    read_joined,
    read_size,
    read_tail,
    read_whole,
)
from rankwise.data.store.remote.requests import Part
from rankwise.data.store.remote.stores import load_obstore
from rankwise.data.store.remote.workers import PendingReads, Workers
from rankwise.data.store.stats import Tally
from rankwise.errors import DataError

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["RemoteFiles"]

T = TypeVar("T")


class _Session(NamedTuple):
    """The parts that closing releases and the next read recreates."""

    client: Client
    workers: Workers


class RemoteFiles:
    """Reads objects behind URLs (s3, gs, az, http, https, file, memory); thread-safe; one for each reader.

    Pickles as its options: a copy makes new connections and counts from zero. Threads start with the first `fetch`.

    Every method raises `ConfigError` for a URL or an option that cannot work, `MissingExtraError` without obstore,
    `WorldError` in a process that was forked from one that used object stores, `TransferError` if the store cannot be
    reached or refuses, and `ObjectChangedError` if an object is not the one that was opened.

    Args:
        options: for requests to the stores.
    """

    def __init__(self, options: RemoteOptions | None = None) -> None:
        self.options = RemoteOptions() if options is None else options
        self._counters = Tally(RemoteStats())
        self._lock = threading.Lock()  # for the session; no thread waits for a store while holding it
        self._session: _Session | None = None

    @property
    def stats(self) -> RemoteStats:
        """Counts of requests so far, and their costs."""
        return self._counters.stats

    def read_document(self, url: str) -> bytes | None:
        """Return a whole object (a metadata document), None if there is none."""
        part = read_whole(self._open().client, url)
        return None if part is None else bytes(part.data)

    def size(self, url: str) -> tuple[int, str | None] | None:
        """Return size and version of an object, None if there is none."""
        part = read_size(self._open().client, url)
        return None if part is None else (part.size, part.etag)

    def read_head(self, url: str, num_bytes: int) -> Part | None:
        """Return the first bytes of an object (fewer if it has fewer), its size and version; None if there is none."""
        return read_head(self._open().client, url, num_bytes)

    def read_tail(self, url: str, num_bytes: int) -> Part | None:
        """Return the last bytes of an object (fewer if it has fewer), its size and version; None if there is none.

        One request; two on stores that cannot count from the end (Azure).
        """
        return read_tail(self._open().client, url, num_bytes)

    def read_heads(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_head` for many (URL, number of bytes) at once; an error takes the place of a part that failed."""
        return self._read_each(read_head, wanted)

    def read_tails(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_tail` for many (URL, number of bytes) at once; an error takes the place of a part that failed."""
        return self._read_each(read_tail, wanted)

    def fetch(self, ranges: Sequence[RemoteRange]) -> list[memoryview | DataError | None]:
        """Return bytes, in the order of `ranges`.

        An error takes the place of a piece that could not be read; the others are returned. None stands for a
        whole object that does not exist. Pieces from one request share memory.
        """
        return _collect(self.start(ranges))

    def start(self, ranges: Sequence[RemoteRange]) -> PendingReads[memoryview]:
        """Begin a `fetch`, and return at once: take the pieces as they arrive, or all together later."""
        for url in {piece.url for piece in ranges}:
            locate(url)
        joined_ranges = join_ranges(
            ranges, gap_bytes=self.options.coalesce_gap_bytes, max_bytes=self.options.max_read_bytes
        )
        # Both from one session, for this whole call: if another thread closes the reader, these workers refuse.
        client, workers = self._open()
        pending: PendingReads[memoryview] = PendingReads(len(ranges))
        pending.deliver((index, memoryview(b"")) for index, piece in enumerate(ranges) if piece.length == 0)
        for joined in interleave(joined_ranges):
            workers.submit(partial(_deliver, pending, joined.members, partial(read_joined, client, joined, ranges)))
        return pending

    def list_prefix(self, url: str) -> Listing:
        """Return the folders and objects directly below a URL."""
        return list_below(self._open().client, url)

    def zarr_store(self, url: str) -> Store:
        """Return a read-only zarr-python store over the objects below a URL, for data that only zarr-python decodes."""
        from rankwise.data.store.remote.zarr_view import ZarrView

        locate(url)
        return ZarrView(url, self._open)

    def close(self) -> None:
        """End the threads. Requests in progress are given up; reading again restarts them."""
        with self._lock:  # if two threads close at once, one of them gets the session
            session, self._session = self._session, None
        if session is not None:
            session.workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[RemoteFiles], tuple[RemoteOptions]]:
        return type(self), (self.options,)

    def _open(self) -> _Session:
        load_obstore()  # before the lock, which in a forked child may be held for ever: this call raises there
        with self._lock:
            if self._session is None:
                # the end is signalled through its requests: a reference to this reader would keep it alive
                client = Client(self.options, self._counters)
                self._session = _Session(client, Workers(self.options.concurrency, on_end=client.close))
            return self._session

    def _read_each(
        self, read: Callable[[Client, str, int], Part | None], wanted: Iterable[tuple[str, int]]
    ) -> list[Part | DataError | None]:
        calls = list(wanted)
        client, workers = self._open()
        pending: PendingReads[Part] = PendingReads(len(calls))
        for index, (url, num_bytes) in enumerate(calls):
            workers.submit(partial(_deliver, pending, [index], partial(_single, read, client, index, url, num_bytes)))
        return _collect(pending)


def _single(
    read: Callable[[Client, str, int], Part | None], client: Client, index: int, url: str, num_bytes: int
) -> list[tuple[int, Part | DataError | None]]:
    return [(index, read(client, url, num_bytes))]


def _deliver(
    pending: PendingReads[T], members: Sequence[int], read: Callable[[], Iterable[tuple[int, T | DataError | None]]]
) -> None:
    """Read on a worker thread, and deliver the pieces or the error."""
    if pending.cancelled:  # checked before each request: of a cancelled call no further requests are sent
        return
    try:
        pieces = list(read())
    except DataError as error:
        pieces = [(index, error) for index in members]
    except BaseException as error:  # noqa: BLE001  (whoever waits must hear of it, else it waits for ever)
        pending.crash(error)
        return
    pending.deliver(pieces)


def _collect(pending: PendingReads[T]) -> list[T | DataError | None]:
    try:
        return pending.result()
    except BaseException:  # a Ctrl-C during the wait: the remaining pieces will not be taken
        pending.cancel()
        raise
