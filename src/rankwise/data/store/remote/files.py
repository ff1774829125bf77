"""`RemoteFiles`: a reader's interface to object stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from rankwise._process.forks import renew_in_children
from rankwise.data.store.remote.client import Client, Listing
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, locate
from rankwise.data.store.remote.ranges import PendingReads, RemoteRange, interleave, join_ranges, read_joined
from rankwise.data.store.remote.requests import Part
from rankwise.data.store.remote.stores import load_obstore
from rankwise.data.store.stats import Tally
from rankwise.errors import DataError

if TYPE_CHECKING:
    from zarr.abc.store import Store

T = TypeVar("T")


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
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start with nothing open and all counts zero; for processes that are forked while threads run."""
        self._counters = Tally(RemoteStats())
        self._lock = threading.Lock()  # for the client; no thread waits for a store while holding it
        self._client: Client | None = None  # closing drops it; the next read makes another one

    @property
    def stats(self) -> RemoteStats:
        """Counts of requests so far, and their costs."""
        return self._counters.stats

    def read_document(self, url: str) -> bytes | None:
        """Return a whole object (a metadata document), None if there is none."""
        part = self._open().read_whole(url)
        return None if part is None else bytes(part.data)

    def size(self, url: str) -> tuple[int, str | None] | None:
        """Return size and version of an object, None if there is none."""
        part = self._open().read_size(url)
        return None if part is None else (part.size, part.etag)

    def read_head(self, url: str, num_bytes: int) -> Part | None:
        """Return the first bytes of an object (fewer if it has fewer), its size and version; None if there is none."""
        return self._open().read_head(url, num_bytes)

    def read_tail(self, url: str, num_bytes: int) -> Part | None:
        """Return the last bytes of an object (fewer if it has fewer), its size and version; None if there is none.

        One request; two on stores that cannot count from the end (Azure).
        """
        return self._open().read_tail(url, num_bytes)

    def read_heads(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_head` for many (URL, number of bytes) at once; an error takes the place of a part that failed."""
        return self._read_each(Client.read_head, wanted)

    def read_tails(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_tail` for many (URL, number of bytes) at once; an error takes the place of a part that failed."""
        return self._read_each(Client.read_tail, wanted)

    def fetch(self, ranges: Sequence[RemoteRange]) -> list[memoryview | DataError | None]:
        """Return bytes, in the order of `ranges`.

        An error takes the place of a piece that could not be read; the others are returned. None stands for a
        whole object that does not exist. Pieces from one request share memory.
        """
        return self.start(ranges).result()

    def start(self, ranges: Sequence[RemoteRange]) -> PendingReads[memoryview]:
        """Begin a `fetch`, and return at once: take the pieces as they arrive, or all together later."""
        for url in {piece.url for piece in ranges}:
            locate(url)
        joined_ranges = join_ranges(
            ranges, gap_bytes=self.options.coalesce_gap_bytes, max_bytes=self.options.max_read_bytes
        )
        client = self._open()  # one for this whole call: if another thread closes the reader, it refuses
        reads = [
            client.submit(partial(_pieces, joined.members, partial(read_joined, joined=joined, ranges=ranges)))
            for joined in interleave(joined_ranges)
        ]
        empty: Future[list[tuple[int, memoryview | DataError | None]]] = Future()
        empty.set_result([(index, memoryview(b"")) for index, piece in enumerate(ranges) if piece.length == 0])
        return PendingReads(len(ranges), [empty, *reads])

    def list_prefix(self, url: str) -> Listing:
        """Return the folders and objects directly below a URL."""
        return self._open().list_below(url)

    def zarr_store(self, url: str) -> Store:
        """Return a read-only zarr-python store over the objects below a URL, for data that only zarr-python decodes."""
        from rankwise.data.store.remote.zarr_view import ZarrView

        locate(url)
        return ZarrView(url, self._open)

    def close(self) -> None:
        """End the threads. Requests in progress are given up; reading again restarts them."""
        with self._lock:  # if two threads close at once, one of them gets the client
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __del__(self) -> None:
        # Whatever waits for a further attempt, and every error of a read, would keep the client and its threads. No
        # thread is inside `Client.submit` then, whose lock this takes: it would have a reference to this object.
        client: Client | None = self.__dict__.get("_client")
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[RemoteFiles], tuple[RemoteOptions]]:
        return type(self), (self.options,)

    def _open(self) -> Client:
        load_obstore()  # raises in a forked child
        with self._lock:
            if self._client is None:
                self._client = Client(self.options, self._counters)
            return self._client

    def _read_each(
        self, read: Callable[[Client, str, int], Part | None], wanted: Iterable[tuple[str, int]]
    ) -> list[Part | DataError | None]:
        client, calls = self._open(), list(wanted)

        def one(client: Client, index: int) -> list[tuple[int, Part | None]]:
            return [(index, read(client, *calls[index]))]

        reads = [client.submit(partial(_pieces, [at], partial(one, index=at))) for at in range(len(calls))]
        return PendingReads(len(calls), reads).result()


def _pieces(
    members: Sequence[int], read: Callable[[Client], Iterable[tuple[int, T | DataError | None]]], client: Client
) -> list[tuple[int, T | DataError | None]]:
    """Return the pieces that a read brings; its error in place of each if it fails."""
    try:
        return list(read(client))
    except DataError as error:
        return [(index, error) for index in members]
