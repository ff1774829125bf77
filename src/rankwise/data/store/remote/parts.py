"""Parts of objects out of requests: ranges of a run, heads, tails, sizes; with a second way where a store lacks one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankwise.data.store.remote.asking import Ask, Part
from rankwise.data.store.remote.attempts import BeyondError, NoRangesError, Requests
from rankwise.data.store.remote.ranges import RemoteRange, Run
from rankwise.data.store.remote.stats import RemoteStats
from rankwise.data.store.remote.trouble import ObjectChangedError, TransferError
from rankwise.errors import DataError

__all__ = ["read_head", "read_run", "read_tail", "read_whole"]


def read_whole(requests: Requests, url: str, etag: str | None = None) -> Part | None:
    """Return an object, None if there is none.

    Raises:
        DataError: as `Requests.ask`.
    """
    return _counted(requests, requests.ask(Ask(url=url, etag=etag)))


def read_head(requests: Requests, url: str, num_bytes: int) -> Part | None:
    """Return the first bytes of an object (fewer if it has fewer), None if there is none.

    Raises:
        DataError: as `Requests.ask`, or the server sends no parts.
    """
    try:
        return _counted(requests, requests.ask(Ask(url=url, length=num_bytes)))
    except BeyondError:
        return requests.ask(Ask(url=url, body=False))
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
    whole = requests.ask(Ask(url=url, body=False))
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
            yield index, _past_end(piece, part.size)
        else:
            requests.counters.add(RemoteStats(wanted_bytes=stop - start))
            yield index, part.data[start:stop]


def _ask_run(requests: Requests, run: Run, stop: int) -> Part:
    ask = Ask(url=run.url, start=run.start, length=stop - run.start, etag=run.etag)
    try:
        part = requests.ask(ask)
    except NoRangesError as error:
        raise _no_ranges(run.url) from error
    except BeyondError as error:
        raise ObjectChangedError(
            f"{run.url}: wanted {ask.span}, but the object ends before them: it was cut or replaced", url=run.url
        ) from error
    if part is None:
        raise ObjectChangedError(
            f"{run.url}: wanted {ask.span}, but there is no such object (any more): it was deleted", url=run.url
        )
    return part


def _past_end(piece: RemoteRange, size: int) -> ObjectChangedError:
    last = piece.offset + (piece.length or 0) - 1
    return ObjectChangedError(
        f"{piece.url}: wanted bytes {piece.offset} to {last}, but the object has {size}: it was cut or replaced",
        url=piece.url,
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
