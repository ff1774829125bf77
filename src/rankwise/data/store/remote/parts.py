"""Reads parts of objects: joined ranges, heads, tails, sizes, and listings.

Every read raises the errors of `Requests.ask`, or a TransferError if the server does not support ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from rankwise.data.store.remote.attempts import BeyondError, NoRangesError, Requests
from rankwise.data.store.remote.options import Location, RemoteStats, locate
from rankwise.data.store.remote.requests import Ask, ObjectChangedError, Part, TransferError
from rankwise.errors import ConfigError, DataError

__all__ = [
    "Listing",
    "RemoteRange",
    "Run",
    "join_ranges",
    "list_below",
    "read_head",
    "read_part",
    "read_run",
    "read_size",
    "read_tail",
    "read_whole",
    "take_turns",
]


def read_whole(requests: Requests, url: str, etag: str | None = None) -> Part | None:
    """Return an object, None if there is none."""
    return _counted(requests, requests.ask(Ask(url=url, etag=etag)))


def read_size(requests: Requests, url: str) -> Part | None:
    """Return size and version of an object without its bytes, None if there is none."""
    return requests.ask(Ask(url=url, body=False))


def read_part(requests: Requests, url: str, start: int, length: int | None) -> Part | None:
    """Return bytes of an object from `start` on, up to the end without a `length`; None if there is none.

    Raises:
        ObjectChangedError: it ends before the last byte.
    """
    ask = Ask(url=url, start=start, length=length)
    part = _asked(requests, ask)
    if part is not None and length is not None and part.data.nbytes < length:
        raise _past_end(url, start, length, part.size)
    return _counted(requests, part)


def read_head(requests: Requests, url: str, num_bytes: int) -> Part | None:
    """Return the first bytes of an object (fewer if it has fewer), None if there is none."""
    try:
        return _counted(requests, requests.ask(Ask(url=url, length=num_bytes)))
    except BeyondError:
        return read_size(requests, url)
    except NoRangesError as error:
        raise _no_ranges(url) from error


def read_tail(requests: Requests, url: str, num_bytes: int) -> Part | None:
    """Return the last bytes of an object (fewer if it has fewer), None if there is none.

    One request; two if the store cannot count from the end (Azure), or the object is empty.
    """
    try:
        return _counted(requests, requests.ask(Ask(url=url, start=-num_bytes)))
    except (BeyondError, NoRangesError):
        return _tail_by_size(requests, url, num_bytes)


def _tail_by_size(requests: Requests, url: str, num_bytes: int) -> Part | None:
    whole = read_size(requests, url)
    if whole is None or whole.size == 0:
        return whole
    length = min(num_bytes, whole.size)
    try:
        part = requests.ask(Ask(url=url, start=whole.size - length, length=length, etag=whole.etag))
    except NoRangesError as error:
        raise _no_ranges(url) from error
    except BeyondError as error:
        raise ObjectChangedError(f"{url} was truncated while it was opened", url=url) from error
    return _counted(requests, part)


def read_run(
    requests: Requests, run: Run, ranges: Sequence[RemoteRange]
) -> Iterator[tuple[int, memoryview | DataError | None]]:
    """Yield the pieces of a run: (index, bytes), with an error for each piece that extends beyond the object's end.

    None stands for a whole object that does not exist.

    Raises:
        ObjectChangedError: an object of which a part was requested does not exist any more.
    """
    if run.stop is None:
        whole = read_whole(requests, run.url, run.etag)
        yield from ((index, None if whole is None else whole.data) for index in run.members)
        return
    part = _ask_run(requests, run, run.stop)
    for index in run.members:
        piece = ranges[index]
        start = piece.offset - run.start
        stop = start + (piece.length or 0)
        if stop > part.data.nbytes:
            yield index, _past_end(run.url, piece.offset, stop - start, part.size)
        else:
            requests.counters.add(RemoteStats(wanted_bytes=stop - start))
            yield index, part.data[start:stop]


def _ask_run(requests: Requests, run: Run, stop: int) -> Part:
    ask = Ask(url=run.url, start=run.start, length=stop - run.start, etag=run.etag)
    part = _asked(requests, ask)
    if part is None:
        raise ObjectChangedError(
            f"{run.url}: requested {ask.span}, but the object no longer exists: it was deleted", url=run.url
        )
    return part


def _asked(requests: Requests, ask: Ask) -> Part | None:
    """Request a part, with errors that may be shown."""
    try:
        return requests.ask(ask)
    except NoRangesError as error:
        raise _no_ranges(ask.url) from error
    except BeyondError as error:
        raise ObjectChangedError(
            f"{ask.url}: requested {ask.span}, but the object is shorter: it was truncated or replaced", url=ask.url
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


def _counted(requests: Requests, part: Part | None) -> Part | None:
    if part is not None:
        requests.counters.add(RemoteStats(wanted_bytes=part.data.nbytes))
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


def list_below(requests: Requests, url: str) -> Listing:
    """Return the folders and objects directly below a URL.

    Raises:
        ConfigError: the URL cannot work.
        TransferError: the store could not be reached, refused, or does not support listings (most web servers).
    """
    location = locate(url)
    store = requests.store(location)
    try:
        found = requests.run(lambda: store.list_with_delimiter(location.path or None), url=url, what="a listing")
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
class Run:
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


def join_ranges(ranges: Sequence[RemoteRange], *, gap_bytes: int, max_bytes: int) -> list[Run]:
    """Return the requests for ranges, by (URL, version, start). Empty ranges need none.

    Args:
        ranges: in any order; may overlap or repeat.
        gap_bytes: ranges with at most this many bytes between them are joined,
        max_bytes: as long as the request stays within this. A single range may be longer.
    """
    order = sorted(
        (piece.url, piece.etag or "", piece.offset, index) for index, piece in enumerate(ranges) if piece.length != 0
    )
    runs: list[Run] = []
    last: Run | None = None
    for url, _, offset, index in order:
        length = ranges[index].length
        stop = None if length is None else offset + length
        etag = ranges[index].etag
        if last is None or not _joins(last, (url, etag), offset, stop, gap_bytes=gap_bytes, max_bytes=max_bytes):
            last = Run(url=url, etag=etag, start=offset, stop=stop)
            runs.append(last)
        elif stop is not None and last.stop is not None and stop > last.stop:
            last.stop = stop
        last.members.append(index)
    return runs


def _joins(
    run: Run, version: tuple[str, str | None], start: int, stop: int | None, *, gap_bytes: int, max_bytes: int
) -> bool:
    if version != (run.url, run.etag):
        return False
    if stop is None or run.stop is None:
        return stop is run.stop
    # a range inside the run has no extra cost, however long the run is
    return stop <= run.stop or (start - run.stop <= gap_bytes and stop - run.start <= max_bytes)


def take_turns(runs: Iterable[Run]) -> list[Run]:
    """Order requests so that objects alternate, each in its own order: concurrent requests to one object slow down."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, Run]] = []
    for run in runs:
        turn = seen[run.url] = seen.get(run.url, -1) + 1
        turns.append((turn, run))
    return [run for _, run in sorted(turns, key=lambda item: item[0])]
