"""Where the rows of a CSR matrix lie in its chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray

__all__ = ["SparseLayout", "lay_out"]

_CHUNK_COST = 1_000  # opening a chunk costs about as much as decoding so many elements
_QUANTILES = np.linspace(0.5, 1.0, 101)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseLayout:
    """How the rows of one matrix are stored.

    Attributes:
        chunk: elements of a chunk.
        pads: int64[rows], explicit zeros after the true elements of each row; None = the rows are stored as they are.
        num_elements: elements that are stored, zeros included.
    """

    chunk: int
    pads: IntArray | None
    num_elements: int


def lay_out(lengths: IntArray, num_cols: int, rows_per_chunk: int, *, align: bool) -> SparseLayout:
    """Choose the chunks of a CSR matrix.

    With `align` every block of `rows_per_chunk` rows begins at a chunk edge: the last rows of the block before it carry
    explicit zeros up to that edge, in columns that they do not use. The size of a chunk is the one with the least to
    decode: blocks that are longer than it take several. Where the rows of a block have too few free columns for the
    zeros, the next block begins where it ended.

    Args:
        lengths: int64[rows], elements of each row.
        num_cols: columns of the matrix.
        rows_per_chunk: rows that belong together.
        align: whether chunk edges fall on row edges.
    """
    total = int(lengths.sum())
    if not align or total == 0:
        return SparseLayout(chunk=_mean_chunk(lengths, rows_per_chunk), pads=None, num_elements=total)
    starts = np.arange(0, len(lengths), rows_per_chunk)
    sums = np.add.reduceat(lengths, starts)
    chunk = _best_chunk(sums)
    pads = np.zeros(len(lengths), dtype=np.int64)
    place = 0
    for number, start in enumerate(starts[:-1].tolist()):
        place += int(sums[number])
        need = -place % chunk
        if need and _give(pads, lengths, num_cols, slice(start, start + rows_per_chunk), need):
            place += need
    return SparseLayout(chunk=chunk, pads=pads, num_elements=total + int(pads.sum()))


def _mean_chunk(lengths: IntArray, rows_per_chunk: int) -> int:
    total = int(lengths.sum())
    return max(1, min(total, int(rows_per_chunk * total / max(1, len(lengths)))))


def _best_chunk(sums: IntArray) -> int:
    """The chunk size with the least to decode for blocks of so many elements."""
    sizes = np.unique(np.quantile(sums, _QUANTILES, method="higher")).astype(np.int64)
    sizes = sizes[sizes > 0]
    chunks = [-(-sums // size) for size in sizes]
    costs = [int(count.sum()) * (int(size) + _CHUNK_COST) for count, size in zip(chunks, sizes, strict=True)]
    return int(sizes[int(np.argmin(costs))])


def _give(pads: IntArray, lengths: IntArray, num_cols: int, block: slice, need: int) -> bool:
    """Give zeros to the last rows of a block that have columns free for them; False if all together have not."""
    free = num_cols - lengths[block]
    if int(free.sum()) < need:
        return False
    later = np.cumsum(free[::-1])[::-1] - free  # what the rows after each one can take
    pads[block] = np.clip(need - later, 0, free)
    return True
