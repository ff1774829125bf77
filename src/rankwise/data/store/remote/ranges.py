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
        (index for index, piece in enumerate(ranges) if piece.length != 0),
        key=lambda index: (ranges[index].url, ranges[index].etag or "", ranges[index].offset),
    )
    runs: list[Run] = []
    for index in order:
        piece = ranges[index]
        if not runs or not _fits(runs[-1], piece, gap_bytes, max_bytes):
            runs.append(Run(url=piece.url, etag=piece.etag, start=piece.offset, stop=_stop(piece)))
        last = runs[-1]
        last.members.append(index)
        if last.stop is not None:
            last.stop = max(last.stop, piece.offset + (piece.length or 0))
    return runs


def _fits(run: Run, piece: RemoteRange, gap_bytes: int, max_bytes: int) -> bool:
    if (run.url, run.etag) != (piece.url, piece.etag):
        return False
    stop = _stop(piece)
    if run.stop is None or stop is None:
        return run.stop is stop
    # what lies inside the run already costs nothing, however long the run is
    return stop <= run.stop or (piece.offset - run.stop <= gap_bytes and stop - run.start <= max_bytes)


def _stop(piece: RemoteRange) -> int | None:
    return None if piece.length is None else piece.offset + piece.length


def take_turns(runs: Iterable[Run]) -> list[Run]:
    """Order requests so that objects take turns, each in its own order: many at once on one object slow each other."""
    seen: dict[str, int] = {}
    turns: list[tuple[int, Run]] = []
    for run in runs:
        turn = seen[run.url] = seen.get(run.url, -1) + 1
        turns.append((turn, run))
    return [run for _, run in sorted(turns, key=lambda item: item[0])]
