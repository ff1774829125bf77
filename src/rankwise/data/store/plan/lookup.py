"""Where chunks lie: from coordinates in grids of chunks to files and byte ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store.files import FileAddress, FileBook, FileFacts
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan.grids import different, grid_of, per_file, ravel
from rankwise.data.store.shard import MISSING, OUTSIDE
from rankwise.errors import DataError

__all__ = ["UNREADABLE", "Located", "LookupFailure", "locate"]

UNREADABLE = -2  # offset of a chunk whose place in its file is not known


@dataclass(frozen=True, slots=True)
class LookupFailure:
    """Why chunks of a file cannot be found.

    Attributes:
        place: the file.
        error: what happened.
        damage: whether the content is damaged, False for trouble with the storage.
    """

    place: str
    error: DataError
    damage: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """Where K chunks lie.

    Attributes:
        files: the different files.
        file: int64[K], index into `files`.
        offset: int64[K]; `MISSING` for a chunk that was never written, `UNREADABLE` for one that cannot be found.
        length: int64[K], encoded bytes; -1 where only zarr-python knows, 0 for chunks that are not there.
        failures: what is wrong, by index into `files`.
    """

    files: tuple[FileFacts, ...]
    file: IntArray
    offset: IntArray
    length: IntArray
    failures: dict[int, LookupFailure]


def locate(
    arrays: tuple[ArrayMeta, ...], array: IntArray, coords: IntArray, book: FileBook, serial: Callable[[ArrayMeta], int]
) -> Located:
    """Return where chunks lie; what cannot be found is told, not raised.

    Args:
        arrays: the different arrays.
        array: int64[K], the array of each chunk.
        coords: int64[K, ndim], coordinates of each chunk in its array's grid.
        book: what is known of files.
        serial: returns a number that tells arrays apart.
    """
    ndim = coords.shape[1]
    ratio = np.array([per_file(meta) for meta in arrays], dtype=np.int64).reshape(len(arrays), ndim)[array]
    file_coords, inside = np.divmod(coords, ratio)
    file_grids = [grid_of(meta.shape, meta.files) for meta in arrays]
    number = ravel(file_coords, np.array(file_grids, dtype=np.int64).reshape(len(arrays), ndim)[array])
    first, file = different(array, number, [math.prod(grid) for grid in file_grids])
    offset, length = np.full(len(array), MISSING, dtype=np.int64), np.zeros(len(array), dtype=np.int64)
    entry = ravel(inside, ratio)
    by_file = np.argsort(file, kind="stable")
    bounds = np.searchsorted(file[by_file], np.arange(len(first) + 1))
    serials = {which: serial(arrays[which]) for which in np.unique(array).tolist()}
    addresses = [
        FileAddress(
            serial=serials[int(array[at])],
            number=int(number[at]),
            array=arrays[int(array[at])],
            coords=tuple(file_coords[at].tolist()),
        )
        for at in first.tolist()
    ]
    files: list[FileFacts] = []
    failures: dict[int, LookupFailure] = {}
    there = _StillThere()
    for k, (address, answer) in enumerate(zip(addresses, book.look(addresses), strict=True)):
        members = by_file[bounds[k] : bounds[k + 1]]
        facts = there.checked(address, answer)
        if isinstance(facts, FileFacts):
            offset[members], length[members] = _ranges(facts, address.array, entry[members])
            if (offset[members] == OUTSIDE).any():
                failures[k] = _cut(facts.path)
        else:
            failures[k] = _failure(address.path, facts)
            facts = FileFacts(path=address.path, size=0, identity=(), index=None)
            offset[members] = UNREADABLE
        files.append(facts)
    return Located(files=tuple(files), file=file, offset=offset, length=length, failures=failures)


def _ranges(facts: FileFacts, meta: ArrayMeta, entries: IntArray) -> tuple[IntArray | int, IntArray | int]:
    """Offset and length of some chunks of one file."""
    if not facts.exists:
        return MISSING, 0
    if facts.index is not None:
        found = facts.index[entries]
        return found[:, 0], found[:, 1]
    return 0, facts.size if meta.files == meta.chunks and not facts.is_remote else -1


def _failure(path: str, error: DataError | OSError) -> LookupFailure:
    if isinstance(error, DataError):
        return LookupFailure(path, error, damage=getattr(error, "damage", True))
    return LookupFailure(path, DataError(f"the file {path} cannot be looked at: {error}"), damage=False)


def _cut(path: str) -> LookupFailure:
    return LookupFailure(
        path,
        DataError(
            f"the index of {path} promises bytes that the file does not have: it was cut; copy or write it again"
        ),
        damage=True,
    )


class _StillThere:
    """Missing files are the fill value only while the array itself exists: it may have been moved or unmounted."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def checked(self, file: FileAddress, answer: FileFacts | DataError | OSError) -> FileFacts | DataError | OSError:
        """Return the answer, or an error where the file is missing because the whole array is."""
        place = file.array.place
        if not isinstance(answer, FileFacts) or answer.exists or file.array.is_remote or place in self._seen:
            return answer
        if not any((Path(place) / name).exists() for name in ("zarr.json", ".zarray")):
            return FileNotFoundError(
                f"the array {place} has gone since it was opened (moved, deleted or unmounted): bring it back"
            )
        self._seen.add(place)
        return answer
