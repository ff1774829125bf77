"""`RemoteFiles`: what a reader needs of object stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from rankwise.data.store.remote.attempts import Requests
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, locate
from rankwise.data.store.remote.parts import (
    Listing,
    RemoteRange,
    join_ranges,
    list_below,
    read_head,
    read_run,
    read_size,
    read_tail,
    read_whole,
    take_turns,
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
    """What is given back by closing and made anew by the next read."""

    requests: Requests
    workers: Workers


class RemoteFiles:
    """Reads objects behind URLs (s3, gs, az, http, https, file, memory); thread-safe; one for each reader.

    Pickles as its options: a copy connects anew and counts from zero. Threads start with the first `fetch`.

    Every method raises `ConfigError` for a URL or an option that cannot work, `MissingExtraError` without obstore,
    `WorldError` in a process that was forked from one that read from object stores, `TransferError` when the store
    cannot be reached or refuses, and `ObjectChangedError` when an object is not the one that was opened.

    Args:
        options: how to talk to the stores.
    """

    def __init__(self, options: RemoteOptions | None = None) -> None:
        self.options = RemoteOptions() if options is None else options
        self._counters = Tally(RemoteStats())
        self._lock = threading.Lock()  # for the session; nobody waits for a store while he has it
        self._session: _Session | None = None

    @property
    def stats(self) -> RemoteStats:
        """What was asked so far, and what it cost."""
        return self._counters.stats

    def read_document(self, url: str) -> bytes | None:
        """Return a whole object (a metadata document), None if there is none."""
        part = read_whole(self._open().requests, url)
        return None if part is None else bytes(part.data)

    def size(self, url: str) -> tuple[int, str | None] | None:
        """Return bytes and version of an object, None if there is none."""
        part = read_size(self._open().requests, url)
        return None if part is None else (part.size, part.etag)

    def read_head(self, url: str, num_bytes: int) -> Part | None:
        """Return the first bytes of an object (fewer if it has fewer), its size and version; None if there is none."""
        return read_head(self._open().requests, url, num_bytes)

    def read_tail(self, url: str, num_bytes: int) -> Part | None:
        """Return the last bytes of an object (fewer if it has fewer), its size and version; None if there is none.

        One request; two on stores that cannot count from the end (Azure).
        """
        return read_tail(self._open().requests, url, num_bytes)

    def read_heads(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_head` of many (URL, number of bytes) at once; errors stand in the place of what they kept away."""
        return self._at_once(read_head, wanted)

    def read_tails(self, wanted: Iterable[tuple[str, int]]) -> list[Part | DataError | None]:
        """`read_tail` of many (URL, number of bytes) at once; errors stand in the place of what they kept away."""
        return self._at_once(read_tail, wanted)

    def fetch(self, ranges: Sequence[RemoteRange]) -> list[memoryview | DataError | None]:
        """Return bytes, in the order of `ranges`.

        In the place of a piece that could not be had stands its error; the others are not lost. None stands for a
        whole object that does not exist. Pieces that came with one request share memory.
        """
        return _patiently(self.start(ranges))

    def start(self, ranges: Sequence[RemoteRange]) -> PendingReads[memoryview]:
        """Begin what `fetch` does, and return at once: take the pieces as they arrive, or all together later."""
        for url in {piece.url for piece in ranges}:
            locate(url)
        runs = join_ranges(ranges, gap_bytes=self.options.coalesce_gap_bytes, max_bytes=self.options.max_read_bytes)
        # Both of one session, for all of this call: when another thread closes the reader, these workers refuse.
        requests, workers = self._open()
        pending: PendingReads[memoryview] = PendingReads(len(ranges))
        pending.deliver((index, memoryview(b"")) for index, piece in enumerate(ranges) if piece.length == 0)
        for run in take_turns(runs):
            workers.submit(partial(_bring, pending, run.members, partial(read_run, requests, run, ranges)))
        return pending

    def list_prefix(self, url: str) -> Listing:
        """Return what lies directly below a URL: folders and objects."""
        return list_below(self._open().requests, url)

    def zarr_store(self, url: str) -> Store:
        """Return a read-only store for zarr-python with what lies below a URL, for what only zarr-python decodes."""
        from rankwise.data.store.remote.zarr_view import ZarrView

        locate(url)
        return ZarrView(url, self._open)

    def close(self) -> None:
        """Give threads back. What is under way is given up; reading again opens anew."""
        with self._lock:  # two that close at once: one of them gets the session
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
        load_obstore()  # before the lock, which in a forked child may be held for ever: this one raises there
        with self._lock:
            if self._session is None:
                # told of the end through its requests: a reference to this reader would keep it from being collected
                requests = Requests(self.options, self._counters)
                self._session = _Session(requests, Workers(self.options.concurrency, on_end=requests.close))
            return self._session

    def _at_once(
        self, read: Callable[[Requests, str, int], Part | None], wanted: Iterable[tuple[str, int]]
    ) -> list[Part | DataError | None]:
        calls = list(wanted)
        requests, workers = self._open()
        pending: PendingReads[Part] = PendingReads(len(calls))
        for index, (url, num_bytes) in enumerate(calls):
            workers.submit(partial(_bring, pending, [index], partial(_single, read, requests, index, url, num_bytes)))
        return _patiently(pending)


def _single(
    read: Callable[[Requests, str, int], Part | None], requests: Requests, index: int, url: str, num_bytes: int
) -> list[tuple[int, Part | DataError | None]]:
    return [(index, read(requests, url, num_bytes))]


def _bring(
    pending: PendingReads[T], members: Sequence[int], read: Callable[[], Iterable[tuple[int, T | DataError | None]]]
) -> None:
    """Read on a worker thread and hand in what came, or why nothing did."""
    if pending.cancelled:  # asked before each: of a call that was given up, what has not begun is never sent
        return
    try:
        pieces = list(read())
    except DataError as error:
        pieces = [(index, error) for index in members]
    except BaseException as error:  # noqa: BLE001  (whoever waits must hear of it, else it waits for ever)
        pending.crash(error)
        return
    pending.deliver(pieces)


def _patiently(pending: PendingReads[T]) -> list[T | DataError | None]:
    try:
        return pending.result()
    except BaseException:  # a Ctrl-C while it waits: nobody will take what is still to come
        pending.cancel()
        raise
