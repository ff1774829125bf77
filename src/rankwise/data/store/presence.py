"""What of a chunk lies on the local disk, found without decoding: byte ranges, missing pieces, cut files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.contract import IntArray
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.grid import Grid
from rankwise.data.store.shard import MISSING, OUTSIDE, IndexLayout, read_index
from rankwise.errors import DataError

__all__ = ["ByteRange", "Found", "Presence", "advise"]

_INDEX_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A run of bytes in a local file."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one chunk consists of on disk.

    Attributes:
        ranges: where its inner chunks lie.
        num_missing: inner chunks that were never written.
        where: store key of its first file, for messages.
    """

    ranges: tuple[ByteRange, ...]
    num_missing: int
    where: str

    @property
    def num_bytes(self) -> int:
        """Encoded bytes."""
        return sum(piece.length for piece in self.ranges)


class Presence:
    """Looks up the files of a local array; keeps the shard indexes it has read (32 MiB of them).

    Args:
        root: folder of the array.
        grid: its grid.
        layout: how its shards keep their index; None for an array of one file per inner chunk.
        key: returns the store key, relative to the array, of the file at some coordinates of the file grid.
    """

    def __init__(
        self, root: Path, grid: Grid, layout: IndexLayout | None, *, key: Callable[[tuple[int, ...]], str]
    ) -> None:
        self._root = root
        self._grid = grid
        self._layout = layout
        self._key = key
        self._indexes = ChunkCache(_INDEX_CACHE_BYTES)

    def find(self, chunk: int) -> Found:
        """Return where a chunk lies.

        Raises:
            DataError: a shard's index is damaged or points past the end of the file, a file cannot be looked at, or
                the array as a whole has gone.
        """
        ranges: list[ByteRange] = []
        num_missing = 0
        first = ""
        for coords in self._grid.file_coords(chunk):
            first = first or self._key(coords)
            try:
                pieces, missing = self._file(chunk, coords)
            except OSError as error:
                raise DataError(f"a file of the array cannot be read: {error}") from error
            ranges += pieces
            num_missing += missing
        if num_missing and not self._is_there():
            raise DataError(
                f"the array {self._root} has gone since it was opened (moved, deleted or unmounted): bring it back"
            )
        return Found(ranges=tuple(ranges), num_missing=num_missing, where=first)

    def _is_there(self) -> bool:
        """Missing files are the fill value only while the array itself exists."""
        return any((self._root / name).exists() for name in ("zarr.json", ".zarray"))

    def _file(self, chunk: int, coords: tuple[int, ...]) -> tuple[list[ByteRange], int]:
        path = self._root / self._key(coords)
        if self._layout is None:
            return _whole_file(path)
        index = self._index(path, self._layout)[self._grid.inside(chunk, coords)].reshape(-1, 2)
        if (index[:, 0] == OUTSIDE).any():
            raise DataError(
                f"the file {path} ends before the bytes that its index promises: it was cut; copy or write it again"
            )
        present = index[index[:, 0] != MISSING]
        ranges = [ByteRange(path=path, offset=int(offset), length=int(length)) for offset, length in present]
        return ranges, len(index) - len(present)

    def _index(self, path: Path, layout: IndexLayout) -> IntArray:
        return self._indexes.get(path, lambda: read_index(path, layout))[0]


def _whole_file(path: Path) -> tuple[list[ByteRange], int]:
    """The range of a file that is one inner chunk, and whether it is missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return [], 1
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} should be a chunk and is no regular file")  # zarr-python would take it for missing
    return [ByteRange(path=path, offset=0, length=status.st_size)], 0


def advise(ranges: tuple[ByteRange, ...]) -> None:
    """Tell the kernel that byte ranges will be read soon (``posix_fadvise`` WILLNEED). Best effort: says nothing."""
    if not hasattr(os, "posix_fadvise"):
        return
    by_path: dict[Path, list[ByteRange]] = {}
    for piece in ranges:
        by_path.setdefault(piece.path, []).append(piece)
    for path, pieces in by_path.items():
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # reading it will say what is wrong
        try:
            for piece in sorted(pieces, key=lambda p: p.offset):
                os.posix_fadvise(handle, piece.offset, piece.length, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(handle)
