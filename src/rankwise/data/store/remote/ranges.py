"""From the ranges that are wanted to the requests that bring them: joined over small gaps, objects taking turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankwise.errors import ConfigError

__all__ = ["RemoteRange", "Run", "join_ranges", "take_turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRange:
    """Bytes of an object.

    Attributes:
        url: the object.
        offset: first byte.
        length: number of bytes; None = the whole object, whatever its size (`offset` is 0 then).
        etag: the version that the object must have, as a `Part` told it; None = any.

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
                f"{self.url}: a range wants offset >= 0 and length >= 0, or neither for the whole object; "
                f"got offset {self.offset}, length {self.length}"
            )


@dataclass(slots=True, kw_only=True)
class Run:
    """One request, and the ranges that it brings.

    Attributes:
        url: the object.
        etag: the version that it must have.
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
    """Return the requests for ranges, by (URL, version, start). Ranges of no length need none.

    Args:
        ranges: in any order; may overlap or repeat.
        gap_bytes: ranges with at most so many bytes between them are joined,
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
    # what lies inside the run already costs nothing, however long the run is
    return stop <= run.stop or (start - run.stop <= gap_bytes and stop - run.start <= max_bytes)


def take_turns(runs: Iterable[Run]) -> list[Run]:
    """Order requests so that objects take turns, each in its own order: many at once on one object slow each other."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, Run]] = []
    for run in runs:
        turn = seen[run.url] = seen.get(run.url, -1) + 1
        turns.append((turn, run))
    return [run for _, run in sorted(turns, key=lambda item: item[0])]
