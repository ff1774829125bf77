"""`RemoteFiles`: a reader's interface to object stores; joins ranges of objects to fewer requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from rankwise._process.forks import renew_in_children
from rankwise.data.store.remote.client import Client, Listing
from rankwise.data.store.remote.options import RemoteOptions, RemoteStats, load_obstore, locate
from rankwise.data.store.remote.requests import ObjectChangedError, ObjectRequest, Part
from rankwise.data.store.stats import Tally
from rankwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from zarr.abc.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRange:
    """Bytes of an object.

    Attributes:
        url: the object.
        offset: first byte.
        length: number of bytes; None = the whole object, whatever its size (`offset` is 0 then).
        etag: the required version of the object, from a `Part`; None = any.

    Raises:
        ConfigError: a negative offset or length, or an offset without a length.
    """

    url: str
    offset: int = 0
    length: int | None = None
    etag: str | None = None

    def __post_init__(self) -> None:
        if self.offset < 0 or (self.length or 0) < 0 or (self.length is None and self.offset):
            raise ConfigError(
                f"{self.url}: a range needs offset >= 0 and length >= 0, or neither for the whole object; "
                f"got offset {self.offset}, length {self.length}"
            )


@dataclass(slots=True, kw_only=True)
class JoinedRange:
    """One request, and the ranges that it covers.

    Attributes:
        url: the object.
        etag: the required version.
        start: first byte.
        stop: byte after the last; None = up to the end of the object.
        members: indices of the ranges, by offset.
    """

    url: str
    etag: str | None
    start: int
    stop: int | None
    members: list[int] = field(default_factory=list)

    def takes(self, piece: RemoteRange, stop: int | None, *, gap_bytes: int, max_bytes: int) -> bool:
        """Whether a range that begins no earlier, and ends at `stop`, may join."""
        if (piece.url, piece.etag) != (self.url, self.etag):
            return False
        if stop is None or self.stop is None:
            return stop is self.stop
        # a range inside costs nothing more, however long the joined range is
        return stop <= self.stop or (piece.offset - self.stop <= gap_bytes and stop - self.start <= max_bytes)


def join_ranges(ranges: Sequence[RemoteRange], *, gap_bytes: int, max_bytes: int) -> list[JoinedRange]:
    """Return the requests for ranges, by (URL, version, start). Empty ranges need none.

    Args:
        ranges: in any order; may overlap or repeat.
        gap_bytes: ranges with at most this many bytes between them are joined,
        max_bytes: as long as the request stays within this. A single range may be longer.
    """
    order = sorted(
        (piece.url, piece.etag or "", piece.offset, index) for index, piece in enumerate(ranges) if piece.length != 0
    )
    joined_ranges: list[JoinedRange] = []
    last: JoinedRange | None = None
    for *_, index in order:
        piece = ranges[index]
        stop = None if piece.length is None else piece.offset + piece.length
        if last is None or not last.takes(piece, stop, gap_bytes=gap_bytes, max_bytes=max_bytes):
            last = JoinedRange(url=piece.url, etag=piece.etag, start=piece.offset, stop=stop)
            joined_ranges.append(last)
        elif stop is not None and last.stop is not None and stop > last.stop:
            last.stop = stop
        last.members.append(index)
    return joined_ranges


def interleave(joined_ranges: Iterable[JoinedRange]) -> list[JoinedRange]:
    """Order requests so that objects alternate, each in its own order: concurrent requests to one object slow down."""
    of_object: dict[str, list[JoinedRange]] = {}
    for joined in joined_ranges:
        of_object.setdefault(joined.url, []).append(joined)
    return [joined for turn in zip_longest(*of_object.values()) for joined in turn if joined is not None]


def read_joined(
    client: Client, joined: JoinedRange, ranges: Sequence[RemoteRange]
) -> Iterator[tuple[int, memoryview | DataError | None]]:
    """Yield the pieces of a joined range: (index, bytes), with an error for each piece beyond the end of the object.

    None stands for a whole object that does not exist.

    Raises:
        ObjectChangedError: an object of which a part was requested does not exist any more.
        TransferError, ConfigError: as the client.
    """
    length = None if joined.stop is None else joined.stop - joined.start
    request = ObjectRequest(url=joined.url, start=joined.start, length=length, etag=joined.etag)
    part = client.request(request, count_wanted=length is None)
    if part is None and length is not None:
        raise ObjectChangedError(
            f"{joined.url}: requested {request.span}, but the object no longer exists: it was deleted", url=joined.url
        )
    for index in joined.members:
        piece = ranges[index]
        start, stop = piece.offset - joined.start, piece.offset - joined.start + (piece.length or 0)
        if part is None or length is None:
            yield index, None if part is None else part.data
        elif stop > part.data.nbytes:
            request = ObjectRequest(url=joined.url, start=piece.offset, length=piece.length)
            yield index, request.past_end(part.size)
        else:
            client.counters.add(RemoteStats(wanted_bytes=stop - start))
            yield index, part.data[start:stop]


class PendingReads(Generic[T]):
    """The pieces of several reads as they arrive.

    Args:
        num_pieces: how many there are.
        reads: each returns some of them as (index, piece): bytes, an error, or None for an object that does not exist.
    """

    def __init__(self, num_pieces: int, reads: Sequence[Future[list[tuple[int, T | DataError | None]]]]) -> None:
        self._num_pieces, self._reads = num_pieces, reads

    def cancel(self) -> None:
        """Send no more requests. Those in flight end by themselves."""
        for read in self._reads:
            read.cancel()

    def result(self) -> list[T | DataError | None]:
        """Wait for all pieces and return them in the requested order. If interrupted, cancel.

        Raises:
            DataError: it was cancelled.
            Exception: an error that does not belong to one piece.
        """
        pieces: list[T | DataError | None] = [None] * self._num_pieces
        try:
            # No timeout here: requests have deadlines, and end when their reader is closed. A Ctrl-C ends the wait.
            for read in self._reads:
                for index, piece in _taken(read):
                    pieces[index] = piece
        except BaseException:  # the remaining pieces will not be taken
            self.cancel()
            raise
        return pieces

    def __iter__(self) -> Iterator[tuple[int, T | DataError | None]]:
        """Yield (index, piece) in the order of arrival.

        Raises:
            DataError: it was cancelled.
            Exception: an error that does not belong to one piece.
        """
        for read in as_completed(self._reads):
            yield from _taken(read)


def _taken(read: Future[T]) -> T:
    try:
        return read.result()
    except CancelledError:
        raise DataError("these reads were cancelled before all of them had arrived") from None


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
        client = self._open()

        def one(at: int, call: tuple[str, int], client: Client) -> list[tuple[int, Part | DataError | None]]:
            return _pieces([at], lambda client: [(at, read(client, *call))], client)

        reads = [client.submit(partial(one, at, call)) for at, call in enumerate(wanted)]
        return PendingReads(len(reads), reads).result()


def _pieces(
    members: Sequence[int], read: Callable[[Client], Iterable[tuple[int, T | DataError | None]]], client: Client
) -> list[tuple[int, T | DataError | None]]:
    """Return the pieces that a read brings; its error in place of each if it fails."""
    try:
        return list(read(client))
    except DataError as error:
        return [(index, error) for index in members]
