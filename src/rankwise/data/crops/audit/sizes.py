"""How large stored chunks are: a few files of an array are looked at, their data are not read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
        missing_share: share of these chunks that was never written, 0 to 1.
        chunk_bytes: mean encoded bytes of a chunk that was written; 0 if there is none.
        file_bytes: mean bytes of a file that exists; 0 if there is none.
    """

    files_sampled: int
    files_found: int
    chunks_sampled: int
    missing_share: float
    chunk_bytes: float
    file_bytes: float

    @classmethod
    def together(cls, seen: Sequence[StoredSizes]) -> StoredSizes:
        """Return one view of what the files of several arrays say; at least one."""
        sampled = sum(sizes.chunks_sampled for sizes in seen)
        found = sum(sizes.files_found for sizes in seen)
        written = sum(sizes.num_written for sizes in seen)
        return cls(
            files_sampled=sum(sizes.files_sampled for sizes in seen),
            files_found=found,
            chunks_sampled=sampled,
            missing_share=1 - written / sampled,
            chunk_bytes=sum(sizes.chunk_bytes * sizes.num_written for sizes in seen) / max(written, 1),
            file_bytes=sum(sizes.file_bytes * sizes.files_found for sizes in seen) / max(found, 1),
        )

    @property
    def num_written(self) -> float:
        """Chunks that were written, of those sampled."""
        return (1 - self.missing_share) * self.chunks_sampled


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
    picked = np.unique(np.linspace(0, total - 1, min(most_files, total)).astype(np.int64))
    coords = np.stack(np.unravel_index(picked, grid), axis=1).tolist()
    paths = [Path(meta.place, meta.keys.key(tuple(place))) for place in coords]
    found = [path for path in paths if path.is_file()]
    lengths = [_lengths(path, meta) for path in paths]
    written = np.concatenate(lengths)
    per_file = 1 if meta.index is None else math.prod(meta.index.chunks_per_shard)
    return StoredSizes(
        files_sampled=len(paths),
        files_found=len(found),
        chunks_sampled=len(paths) * per_file,
        missing_share=1 - len(written) / (len(paths) * per_file),
        chunk_bytes=float(written.mean()) if len(written) else 0.0,
        file_bytes=float(np.mean([path.stat().st_size for path in found])) if found else 0.0,
    )


def _file_grid(meta: ArrayMeta) -> tuple[int, ...]:
    return tuple(max(1, -(-size // file)) for size, file in zip(meta.shape, meta.files, strict=True))


def _lengths(path: Path, meta: ArrayMeta) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Encoded bytes of the chunks that a file holds."""
    if meta.index is not None:
        index = read_index(path, meta.index).reshape(-1, 2)
        lengths: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = index[index[:, 0] >= 0, 1]
        return lengths
    try:
        return np.array([path.stat().st_size], dtype=np.int64)
    except FileNotFoundError:
        return np.empty(0, dtype=np.int64)
