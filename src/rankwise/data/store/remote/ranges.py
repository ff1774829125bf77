"""Ranges of objects, joined to fewer requests, and the pieces that arrive for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rankwise.data.store.remote.client import Client
from rankwise.data.store.remote.options import RemoteStats
from rankwise.data.store.remote.requests import ObjectChangedError, ObjectRequest
from rankwise.errors import ConfigError, DataError

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
    for url, _, offset, index in order:
        length = ranges[index].length
        stop = None if length is None else offset + length
        etag = ranges[index].etag
        if last is None or not _joins(last, (url, etag), offset, stop, gap_bytes=gap_bytes, max_bytes=max_bytes):
            last = JoinedRange(url=url, etag=etag, start=offset, stop=stop)
            joined_ranges.append(last)
        elif stop is not None and last.stop is not None and stop > last.stop:
            last.stop = stop
        last.members.append(index)
    return joined_ranges


def _joins(
    joined: JoinedRange,
    version: tuple[str, str | None],
    start: int,
    stop: int | None,
    *,
    gap_bytes: int,
    max_bytes: int,
) -> bool:
    if version != (joined.url, joined.etag):
        return False
    if stop is None or joined.stop is None:
        return stop is joined.stop
    # a range inside costs nothing more, however long the joined range is
    return stop <= joined.stop or (start - joined.stop <= gap_bytes and stop - joined.start <= max_bytes)


def interleave(joined_ranges: Iterable[JoinedRange]) -> list[JoinedRange]:
    """Order requests so that objects alternate, each in its own order: concurrent requests to one object slow down."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, JoinedRange]] = []
    for joined in joined_ranges:
        turn = seen[joined.url] = seen.get(joined.url, -1) + 1
        turns.append((turn, joined))
    return [joined for _, joined in sorted(turns, key=lambda item: item[0])]


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
                for index, piece in _pieces(read):
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
            yield from _pieces(read)


def _pieces(read: Future[T]) -> T:
    try:
        return read.result()
    except CancelledError:
        raise DataError("these reads were cancelled before all of them had arrived") from None
