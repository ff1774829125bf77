"""Locates chunks: maps coordinates in chunk grids to files and byte ranges; and the tables of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.contract import BoolArray, IntArray
from rankwise.data.store.boxes import BoxError, BoxRequest
from rankwise.data.store.files import FactsCache, FileAddress, FileFacts
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan.grids import distinct, grid_of, per_file, ravel
from rankwise.data.store.shard import MISSING, OUTSIDE
from rankwise.errors import DataError

__all__ = ["UNREADABLE", "BoxPlan", "ChunkTable", "Located", "LookupFailure", "PaddedBox", "TargetTable", "locate"]

UNREADABLE = -2  # offset of a chunk whose location in its file is unknown


@dataclass(frozen=True, slots=True)
class LookupFailure:
    """The reason why chunks of a file cannot be located.

    Attributes:
        place: the file.
        error: what happened.
        damage: whether the content is damaged, False for storage errors.
    """

    place: str
    error: DataError
    damage: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """The locations of K chunks.

    Attributes:
        files: the distinct files.
        file: int64[K], index into `files`.
        offset: int64[K]; `MISSING` for a chunk that was never written, `UNREADABLE` for one that cannot be located.
        length: int64[K], encoded bytes; -1 if only zarr-python knows, 0 for missing chunks.
        failures: errors, by index into `files`.
    """

    files: tuple[FileFacts, ...]
    file: IntArray
    offset: IntArray
    length: IntArray
    failures: dict[int, LookupFailure]


def locate(
    arrays: tuple[ArrayMeta, ...],
    array: IntArray,
    coords: IntArray,
    facts_cache: FactsCache,
    serial: Callable[[ArrayMeta], int],
) -> Located:
    """Return the locations of chunks; failures are reported, not raised.

    Args:
        arrays: the distinct arrays.
        array: int64[K], the array of each chunk.
        coords: int64[K, ndim], coordinates of each chunk in its array's grid.
        facts_cache: facts about files.
        serial: returns a number that identifies an array.
    """
    ndim = coords.shape[1]
    ratio = np.array([per_file(meta) for meta in arrays], dtype=np.int64).reshape(len(arrays), ndim)[array]
    file_coords, inside = np.divmod(coords, ratio)
    file_grids = [grid_of(meta.shape, meta.files) for meta in arrays]
    number = ravel(file_coords, np.array(file_grids, dtype=np.int64).reshape(len(arrays), ndim)[array])
    first, file = distinct(array, number, [math.prod(grid) for grid in file_grids])
    owners = array[first].tolist()
    serials = {which: serial(arrays[which]) for which in set(owners)}
    keys = [(serials[which], at) for which, at in zip(owners, number[first].tolist(), strict=True)]
    files, failures = _facts_of([arrays[which] for which in owners], keys, file_coords[first], facts_cache)
    whole = np.array([not meta.is_remote and meta.files == meta.chunks for meta in arrays], dtype=np.bool_)
    offset, length = _whole_files(files, failures, whole[array[first]])
    offset, length = offset[file], length[file]
    _look_up(files, file, ravel(inside, ratio), offset, length)
    for k in np.unique(file[offset == OUTSIDE]).tolist():
        failures.setdefault(k, _truncated(files[k].path))
    return Located(files=tuple(files), file=file, offset=offset, length=length, failures=failures)


def _facts_of(
    arrays: list[ArrayMeta], keys: list[tuple[int, int]], coords: IntArray, facts_cache: FactsCache
) -> tuple[list[FileFacts], dict[int, LookupFailure]]:
    """Return the facts of files, and the failures of some of them."""
    found: list[FileFacts | DataError | OSError | None] = [*facts_cache.cached(keys)]
    new = [k for k, facts in enumerate(found) if facts is None]
    addresses = [
        FileAddress(serial=keys[k][0], number=keys[k][1], array=arrays[k], coords=tuple(coords[k].tolist()))
        for k in new
    ]
    for k, answer in zip(new, facts_cache.look(addresses) if new else (), strict=True):
        found[k] = answer
    files: list[FileFacts] = []
    failures: dict[int, LookupFailure] = {}
    there: set[str] = set()  # arrays that exist
    for k, array in enumerate(arrays):
        facts = found[k]
        if isinstance(facts, FileFacts) and not facts.exists and array.place not in there:
            gone = _array_error(array, facts_cache)
            if gone is None:
                there.add(array.place)
            else:
                facts = gone
        if not isinstance(facts, FileFacts):
            path = f"{array.place}/{array.keys.key(tuple(coords[k].tolist()))}"
            failures[k] = _failure(path, facts)
            facts = FileFacts(path=path, size=0, identity=(), index=None)
        files.append(facts)
    return files, failures


def _whole_files(files: list[FileFacts], failures: Collection[int], whole: BoolArray) -> tuple[IntArray, IntArray]:
    """Return offset and length for all chunks of a file, to be used unless an index says more.

    Args:
        files: F files.
        failures: files that cannot be read.
        whole: bool[F], files that are one chunk each, of a known size.
    """
    size = np.array([facts.size for facts in files], dtype=np.int64)
    exists = np.array([facts.exists for facts in files], dtype=np.bool_)
    offset, length = np.where(exists, 0, MISSING), np.where(exists, np.where(whole, size, -1), 0)
    unreadable = list(failures)
    offset[unreadable], length[unreadable] = UNREADABLE, 0
    return offset, length


def _look_up(files: list[FileFacts], file: IntArray, entry: IntArray, offset: IntArray, length: IntArray) -> None:
    """Write the offsets and lengths of chunks in shards.

    Args:
        files: F files.
        file: int64[K], the file of each chunk.
        entry: int64[K], index of each chunk in its file.
        offset: int64[K], written.
        length: int64[K], written.
    """
    shards = [k for k, facts in enumerate(files) if facts.index is not None]
    if not shards:
        return
    by_file = np.argsort(file, kind="stable")
    bounds = np.searchsorted(file[by_file], np.arange(len(files) + 1))
    for k in shards:
        members = by_file[bounds[k] : bounds[k + 1]]
        index = files[k].index
        assert index is not None
        found = index[entry[members]]
        offset[members], length[members] = found[:, 0], found[:, 1]


def _failure(path: str, error: DataError | OSError | None) -> LookupFailure:
    if isinstance(error, DataError):
        return LookupFailure(path, error, damage=getattr(error, "damage", True))
    return LookupFailure(path, DataError(f"cannot read the status of the file {path}: {error}"), damage=False)


def _truncated(path: str) -> LookupFailure:
    return LookupFailure(
        path,
        DataError(
            f"the index of {path} refers to bytes beyond the end of the file: it was truncated; copy or write it again"
        ),
        damage=True,
    )


def _array_error(array: ArrayMeta, facts_cache: FactsCache) -> DataError | OSError | None:
    """Return the error of an array that was moved or unmounted; else its missing files are the fill value."""
    if array.is_remote:
        return facts_cache.array_check.trouble(array)
    if any((Path(array.place) / name).exists() for name in ("zarr.json", ".zarray")):
        return None
    return FileNotFoundError(f"the array {array.place} was moved, deleted or unmounted after it was opened: restore it")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """The K distinct chunks of a plan, sorted by file and offset; chunks that were never written come last.

    Attributes:
        array: int64[K], index into the arrays of the request.
        number: int64[K], index of the chunk in its array's grid of chunks, in C order.
        coords: int64[K, ndim], the same as coordinates.
        file: int64[K], index into the files of the plan.
        offset: int64[K], first byte in the file; -1 for a chunk that was never written, less for one
            that cannot be located.
        length: int64[K], encoded bytes; -1 if only zarr-python knows.
    """

    array: IntArray
    number: IntArray
    coords: IntArray
    file: IntArray
    offset: IntArray
    length: IntArray

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.array)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetTable:
    """The T places that chunks fill: chunk k fills places ``bounds[k]:bounds[k + 1]``.

    Attributes:
        bounds: int64[K + 1].
        box: int64[T], the box.
        src_start: int64[T, ndim], first element inside the chunk.
        extent: int64[T, ndim], number of elements along each axis, at least 1.
        dst_start: int64[T], first element in the flat output [B, *shape].
    """

    bounds: IntArray
    box: IntArray
    src_start: IntArray
    extent: IntArray
    dst_start: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBox:
    """A box that extends beyond its array and is made from a region inside it ("edge", "reflect").

    Attributes:
        box: its place in the request.
        plan: the plan for the region, as a request of one box.
        picks: for each axis, int64[extent]: the element of the region for each place.
    """

    box: int
    plan: BoxPlan
    picks: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxPlan:
    """The plan for one request; made by `BoxReader.plan`, read by the same reader.

    Attributes:
        request: the request.
        files: the files that it needs, in the order of first use.
        chunks: its distinct chunks.
        targets: the places that they fill.
        filled: bool[B], boxes to initialise with the fill value, because they extend beyond their array.
        padded: boxes that are made from another region.
        failed: errors of boxes that are known before reading.
        read_bytes: encoded bytes to read, as far as known without reading the data.
        decode_bytes: bytes to decode.
    """

    request: BoxRequest
    files: tuple[FileFacts, ...]
    chunks: ChunkTable
    targets: TargetTable
    filled: BoolArray
    padded: tuple[PaddedBox, ...]
    failed: tuple[BoxError, ...]
    read_bytes: int
    decode_bytes: int

    @property
    def num_chunks(self) -> int:
        """Number of distinct chunks that it needs."""
        return len(self.chunks) + sum(padded.plan.num_chunks for padded in self.padded)
