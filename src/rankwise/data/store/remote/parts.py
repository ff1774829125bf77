"""Reads parts of objects: joined ranges, heads, tails, sizes, and listings.

Every read raises the errors of `Client.request`, or a TransferError if the server does not support ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from rankwise.data.store.remote.client import BeyondError, Client, NoRangesError
from rankwise.data.store.remote.options import Location, RemoteStats, locate
from rankwise.data.store.remote.requests import ObjectChangedError, ObjectRequest, Part, TransferError
from rankwise.errors import ConfigError, DataError

__all__ = [
    "JoinedRange",
    "Listing",
    "RemoteRange",
    "interleave",
    "join_ranges",
    "list_below",
    "read_head",
    "read_joined",
    "read_part",
    "read_size",
    "read_tail",
    "read_whole",
]


def read_whole(client: Client, url: str, etag: str | None = None) -> Part | None:
    """Return an object, None if there is none."""
    return _counted(client, client.request(ObjectRequest(url=url, etag=etag)))


def read_size(client: Client, url: str) -> Part | None:
    """Return size and version of an object without its bytes, None if there is none."""
    return client.request(ObjectRequest(url=url, body=False))


def read_part(client: Client, url: str, start: int, length: int | None) -> Part | None:
    """Return bytes of an object from `start` on, up to the end without a `length`; None if there is none.

    Raises:
        ObjectChangedError: it ends before the last byte.
    """
    request = ObjectRequest(url=url, start=start, length=length)
    part = _requested(client, request)
    if part is not None and length is not None and part.data.nbytes < length:
        raise _past_end(url, start, length, part.size)
    return _counted(client, part)


def read_head(client: Client, url: str, num_bytes: int) -> Part | None:
    """Return the first bytes of an object (fewer if it has fewer), None if there is none."""
    try:
        return _counted(client, client.request(ObjectRequest(url=url, length=num_bytes)))
    except BeyondError:
        return read_size(client, url)
    except NoRangesError as error:
        raise _no_ranges(url) from error


def read_tail(client: Client, url: str, num_bytes: int) -> Part | None:
    """Return the last bytes of an object (fewer if it has fewer), None if there is none.

    One request; two if the store cannot count from the end (Azure), or the object is empty.
    """
    try:
        return _counted(client, client.request(ObjectRequest(url=url, start=-num_bytes)))
    except (BeyondError, NoRangesError):
        return _tail_by_size(client, url, num_bytes)


def _tail_by_size(client: Client, url: str, num_bytes: int) -> Part | None:
    whole = read_size(client, url)
    if whole is None or whole.size == 0:
        return whole
    length = min(num_bytes, whole.size)
    try:
        part = client.request(ObjectRequest(url=url, start=whole.size - length, length=length, etag=whole.etag))
    except NoRangesError as error:
        raise _no_ranges(url) from error
    except BeyondError as error:
        raise ObjectChangedError(f"{url} was truncated while it was opened", url=url) from error
    return _counted(client, part)


def read_joined(
    client: Client, joined: JoinedRange, ranges: Sequence[RemoteRange]
) -> Iterator[tuple[int, memoryview | DataError | None]]:
    """Yield the pieces of a joined range: (index, bytes), with an error for each piece beyond the end of the object.

    None stands for a whole object that does not exist.

    Raises:
        ObjectChangedError: an object of which a part was requested does not exist any more.
    """
    if joined.stop is None:
        whole = read_whole(client, joined.url, joined.etag)
        yield from ((index, None if whole is None else whole.data) for index in joined.members)
        return
    part = _request_joined(client, joined, joined.stop)
    for index in joined.members:
        piece = ranges[index]
        start = piece.offset - joined.start
        stop = start + (piece.length or 0)
        if stop > part.data.nbytes:
            yield index, _past_end(joined.url, piece.offset, stop - start, part.size)
        else:
            client.counters.add(RemoteStats(wanted_bytes=stop - start))
            yield index, part.data[start:stop]


def _request_joined(client: Client, joined: JoinedRange, stop: int) -> Part:
    request = ObjectRequest(url=joined.url, start=joined.start, length=stop - joined.start, etag=joined.etag)
    part = _requested(client, request)
    if part is None:
        raise ObjectChangedError(
            f"{joined.url}: requested {request.span}, but the object no longer exists: it was deleted", url=joined.url
        )
    return part


def _requested(client: Client, request: ObjectRequest) -> Part | None:
    """Request a part, with errors that may be shown."""
    try:
        return client.request(request)
    except NoRangesError as error:
        raise _no_ranges(request.url) from error
    except BeyondError as error:
        raise ObjectChangedError(
            f"{request.url}: requested {request.span}, but the object is shorter: it was truncated or replaced",
            url=request.url,
        ) from error


def _past_end(url: str, start: int, length: int, size: int) -> ObjectChangedError:
    return ObjectChangedError(
        f"{url}: requested bytes {start} to {start + length - 1}, but the object has {size}: truncated or replaced",
        url=url,
    )


def _no_ranges(url: str) -> TransferError:
    return TransferError(
        f"{url}: the server sends whole objects only, but parts are needed: use a server that supports "
        "range requests, or copy the data to a disk",
        url=url,
    )


def _counted(client: Client, part: Part | None) -> Part | None:
    if part is not None:
        client.counters.add(RemoteStats(wanted_bytes=part.data.nbytes))
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The folders and objects directly below a URL; may be empty, as object stores have no empty folders.

    Attributes:
        folders: URLs with objects below them, sorted.
        objects: URLs of objects, sorted.
    """

    folders: tuple[str, ...]
    objects: tuple[str, ...]


def list_below(client: Client, url: str) -> Listing:
    """Return the folders and objects directly below a URL.

    Raises:
        ConfigError: the URL cannot work.
        TransferError: the store could not be reached, refused, or does not support listings (most web servers).
    """
    location = locate(url)
    store = client.store(location)
    try:
        found = client.retry(lambda: store.list_with_delimiter(location.path or None), url=url, what="a listing")
    except (NoRangesError, BeyondError) as error:
        raise TransferError(f"{url}: the server does not list objects", url=url) from error
    except TransferError as error:
        if location.kind != "http":
            raise
        raise TransferError(
            f"{url}: a plain web server cannot list objects; name the arrays one by one ({error})",
            url=url,
        ) from error
    if found is None:
        return Listing(folders=(), objects=())
    return Listing(
        folders=tuple(sorted(_url(location, path) for path in found["common_prefixes"])),
        objects=tuple(sorted(_url(location, meta["path"]) for meta in found["objects"])),
    )


def _url(location: Location, path: str) -> str:
    return f"{location.root}/{quote(path) if location.kind == 'http' else path}"


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
