"""Parts of objects out of requests: ranges of a run, heads, tails, sizes; and what lies directly below a URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from rankwise.data.store.remote.attempts import BeyondError, NoRangesError, Requests
from rankwise.data.store.remote.options import Location, RemoteStats, locate
from rankwise.data.store.remote.ranges import RemoteRange, Run
from rankwise.data.store.remote.requests import Ask, ObjectChangedError, Part, TransferError
from rankwise.errors import DataError

__all__ = ["Listing", "list_below", "read_head", "read_part", "read_run", "read_size", "read_tail", "read_whole"]


def read_whole(requests: Requests, url: str, etag: str | None = None) -> Part | None:
    """Return an object, None if there is none.

    Raises:
        DataError: as `Requests.ask`.
    """
    return _counted(requests, requests.ask(Ask(url=url, etag=etag)))


def read_size(requests: Requests, url: str) -> Part | None:
    """Return size and version of an object without its bytes, None if there is none.

    Raises:
        DataError: as `Requests.ask`.
    """
    return requests.ask(Ask(url=url, body=False))


def read_part(requests: Requests, url: str, start: int, length: int | None) -> Part | None:
    """Return bytes of an object from `start` on, None if there is none.

    Args:
        requests: sends them.
        url: the object.
        start: first byte.
        length: how many; None = up to the end.

    Raises:
        DataError: as `Requests.ask`; the object ends before the last byte, or the server sends no parts.
    """
    ask = Ask(url=url, start=start, length=length)
    part = _asked(requests, ask)
    if part is not None and length is not None and part.data.nbytes < length:
        raise _past_end(url, start, length, part.size)
    return _counted(requests, part)


def read_head(requests: Requests, url: str, num_bytes: int) -> Part | None:
    """Return the first bytes of an object (fewer if it has fewer), None if there is none.

    Raises:
        DataError: as `Requests.ask`, or the server sends no parts.
    """
    try:
        return _counted(requests, requests.ask(Ask(url=url, length=num_bytes)))
    except BeyondError:
        return read_size(requests, url)
    except NoRangesError as error:
        raise _no_ranges(url) from error


def read_tail(requests: Requests, url: str, num_bytes: int) -> Part | None:
    """Return the last bytes of an object (fewer if it has fewer), None if there is none.

    One request; two where the store cannot count from the end (Azure), or the object is empty.

    Raises:
        DataError: as `Requests.ask`, or the server sends no parts.
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
        raise ObjectChangedError(f"{url} was cut while it was being opened", url=url) from error
    return _counted(requests, part)


def read_run(
    requests: Requests, run: Run, ranges: Sequence[RemoteRange]
) -> Iterator[tuple[int, memoryview | DataError | None]]:
    """Yield the pieces of a run: (index, bytes), an error for each one that reaches past the object's end.

    None stands for a whole object that does not exist.

    Raises:
        DataError: as `Requests.ask`; the object has gone, or the server sends no parts.
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
            f"{run.url}: wanted {ask.span}, but there is no such object (any more): it was deleted", url=run.url
        )
    return part


def _asked(requests: Requests, ask: Ask) -> Part | None:
    """Ask for a part, with errors that may be shown."""
    try:
        return requests.ask(ask)
    except NoRangesError as error:
        raise _no_ranges(ask.url) from error
    except BeyondError as error:
        raise ObjectChangedError(
            f"{ask.url}: wanted {ask.span}, but the object ends before them: it was cut or replaced", url=ask.url
        ) from error


def _past_end(url: str, start: int, length: int, size: int) -> ObjectChangedError:
    return ObjectChangedError(
        f"{url}: wanted bytes {start} to {start + length - 1}, but the object has {size}: it was cut or replaced",
        url=url,
    )


def _no_ranges(url: str) -> TransferError:
    return TransferError(
        f"{url}: the server sends whole objects only, and parts are wanted: serve the data by a server that answers "
        "range requests, or copy them to a disk",
        url=url,
    )


def _counted(requests: Requests, part: Part | None) -> Part | None:
    if part is not None:
        requests.counters.add(RemoteStats(wanted_bytes=part.data.nbytes))
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies directly below a URL; empty if nothing does, for object stores know no empty folders.

    Attributes:
        folders: URLs below which there is more, sorted.
        objects: URLs of objects, sorted.
    """

    folders: tuple[str, ...]
    objects: tuple[str, ...]


def list_below(requests: Requests, url: str) -> Listing:
    """Return what lies directly below a URL.

    Raises:
        ConfigError: the URL cannot work.
        TransferError: the store could not be reached, refused, or has no listings (most web servers).
    """
    location = locate(url)
    store = requests.store(location)
    try:
        found = requests.run(lambda: store.list_with_delimiter(location.path or None), url=url, what="a listing")
    except (NoRangesError, BeyondError) as error:
        raise TransferError(f"{url}: the server has no listings", url=url) from error
    except TransferError as error:
        if location.kind != "http":
            raise
        raise TransferError(
            f"{url}: a plain web server has no listings that object stores understand; name the arrays one by one "
            f"({error})",
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
