"""How large stored chunks are: a few files of an array are looked at, their data are not read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.contract import FloatArray, IntArray
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.shard import read_index

__all__ = ["StoredSizes", "num_files", "sample_sizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSizes:
    """What a few files of an array say about its chunks.

    Attributes:
        files_sampled: files that were looked at.
        files_found: those of them that exist; the others stand for the fill value.
        chunks_sampled: chunks in all of them.
        chunks_written: those of them that are stored.
        whole_chunks: the same, where a chunk that reaches past the array counts by its part inside.
        chunk_bytes: mean encoded bytes of a whole chunk; 0 if none is stored.
        file_bytes: mean bytes of a file that exists; 0 if none does.
    """

    files_sampled: int
    files_found: int
    chunks_sampled: int
    chunks_written: int
    whole_chunks: float
    chunk_bytes: float
    file_bytes: float

    @property
    def missing_share(self) -> float:
        """Share of the chunks that was never written, 0 to 1."""
        return 1 - self.chunks_written / self.chunks_sampled

    @classmethod
    def together(cls, seen: Sequence[StoredSizes]) -> StoredSizes:
        """Return one view of what several files or arrays say; at least one."""
        found = sum(sizes.files_found for sizes in seen)
        whole = sum(sizes.whole_chunks for sizes in seen)
        return cls(
            files_sampled=sum(sizes.files_sampled for sizes in seen),
            files_found=found,
            chunks_sampled=sum(sizes.chunks_sampled for sizes in seen),
            chunks_written=sum(sizes.chunks_written for sizes in seen),
            whole_chunks=whole,
            chunk_bytes=sum(sizes.chunk_bytes * sizes.whole_chunks for sizes in seen) / whole if whole else 0.0,
            file_bytes=sum(sizes.file_bytes * sizes.files_found for sizes in seen) / max(found, 1),
        )


def num_files(meta: ArrayMeta) -> int:
    """Return how many files an array has when all of it is written."""
    return math.prod(_file_grid(meta))


def sample_sizes(meta: ArrayMeta, *, most_files: int) -> StoredSizes | None:
    """Look at files of a local array, spread evenly over it.

    Args:
        meta: the array.
        most_files: files to look at; 0 looks at none.

    Returns:
        None where nothing can be said: behind a URL, no file asked for, or shards with an unusual index.

    Raises:
        DataError: the index of a shard is damaged.
    """
    if meta.is_remote or most_files < 1 or (meta.index is None and meta.sharded):
        return None
    grid = _file_grid(meta)
    total = math.prod(grid)
    picks = min(most_files, total)
    picked = (np.arange(picks, dtype=np.int64) * 2 + 1) * total // (2 * picks)
    coords = np.stack(np.unravel_index(picked, grid), axis=1).tolist()
    return StoredSizes.together([_look(meta, place) for place in coords])


def _file_grid(meta: ArrayMeta) -> tuple[int, ...]:
    return tuple(max(1, -(-size // file)) for size, file in zip(meta.shape, meta.files, strict=True))


def _look(meta: ArrayMeta, file: list[int]) -> StoredSizes:
    """Return what one file says."""
    path = Path(meta.place, meta.keys.key(tuple(file)))
    inside = _parts_inside(meta, file)
    lengths = _lengths(path, meta, inside.shape)
    written = lengths >= 0
    whole = float(inside[written].sum())
    exists = path.is_file()
    return StoredSizes(
        files_sampled=1,
        files_found=int(exists),
        chunks_sampled=inside.size,
        chunks_written=int(written.sum()),
        whole_chunks=whole,
        chunk_bytes=float(lengths[written].sum()) / whole if whole else 0.0,
        file_bytes=float(path.stat().st_size) if exists else 0.0,
    )


def _parts_inside(meta: ArrayMeta, file: list[int]) -> FloatArray:
    """Which part of each chunk of a file lies inside the array; a shard at the edge has room for more chunks."""
    parts: FloatArray = np.ones(())
    for size, extent, chunk, place in zip(meta.shape, meta.files, meta.chunks, file, strict=True):
        begins = np.arange(place * extent, min((place + 1) * extent, size), chunk)
        parts = np.multiply.outer(parts, np.minimum(size - begins, chunk) / chunk)
    return parts


def _lengths(path: Path, meta: ArrayMeta, grid: tuple[int, ...]) -> IntArray:
    """Encoded bytes of the chunks that a file holds, -1 for those that were never written."""
    if meta.index is not None:
        index = read_index(path, meta.index)[tuple(slice(count) for count in grid)]
        lengths: IntArray = np.where(index[..., 0] >= 0, index[..., 1], -1)
        return lengths
    try:
        return np.full(grid, path.stat().st_size, dtype=np.int64)
    except FileNotFoundError:
        return np.full(grid, -1, dtype=np.int64)
