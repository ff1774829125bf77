"""The grid of an array: which inner chunks and which files a range of axis 0 touches. Arithmetic only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Grid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shape, inner chunks and shards of an array with at least one axis.

    All inner chunks that share a range of axis 0 are read together and called one *chunk* in this room: samples lie
    along axis 0, and a sample needs all of them.

    Attributes:
        shape: shape of the array.
        chunks: shape of an inner chunk, the smallest unit that is decoded.
        shards: shape of a shard (one file); None when each inner chunk is a file.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None

    @property
    def chunk_rows(self) -> int:
        """Length of a chunk along axis 0."""
        return self.chunks[0]

    @property
    def num_chunks(self) -> int:
        """Number of chunks along axis 0; the last may be shorter."""
        return -(-self.shape[0] // self.chunk_rows)

    @property
    def files(self) -> tuple[int, ...]:
        """Shape of what one file holds."""
        return self.shards or self.chunks

    @property
    def row_items(self) -> int:
        """Numbers in one row (one index of axis 0)."""
        return math.prod(self.shape[1:])

    def rows(self, chunk: int) -> tuple[int, int]:
        """Return the first row of a chunk and the row after its last."""
        first = chunk * self.chunk_rows
        return first, min(first + self.chunk_rows, self.shape[0])

    def file_coords(self, chunk: int) -> Iterator[tuple[int, ...]]:
        """Yield the grid coordinates of the files that hold a chunk."""
        first = chunk * self.chunk_rows // self.files[0]
        others = (range(-(-n // f)) for n, f in zip(self.shape[1:], self.files[1:], strict=True))
        for rest in itertools.product(*others):
            yield first, *rest

    def inside(self, chunk: int, file: tuple[int, ...]) -> tuple[slice, ...]:
        """Return which entries of a shard's index belong to a chunk.

        One along axis 0; those inside the array along the others, because a shard at the edge has entries for inner
        chunks that do not exist.
        """
        per_file = [f // c for f, c in zip(self.files, self.chunks, strict=True)]
        low = chunk - file[0] * per_file[0]
        inside = [slice(low, low + 1)]
        for axis in range(1, len(self.shape)):
            num_chunks = -(-self.shape[axis] // self.chunks[axis])
            inside.append(slice(0, min(per_file[axis], num_chunks - file[axis] * per_file[axis])))
        return tuple(inside)
