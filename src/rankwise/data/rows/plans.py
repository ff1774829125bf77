"""`RowPlan`: how one share of rows is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray, Share
from rankwise.data.rows.matrices import MatrixPlan
from rankwise.data.store import BoxReader

__all__ = ["RowPlan"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPlan:
    """Implements `Plan`.

    Attributes:
        share: the share.
        rows: int64[B], its rows over all datasets.
        matrices: for each matrix, how its rows are read.
        capacity: for each ragged field, the elements of the batch.
        num_chunks: chunks to decode, those left out that are decoded already.
        read_bytes: encoded bytes to read, as far as known beforehand.
        decode_bytes: bytes to decode.
    """

    share: Share
    rows: IntArray
    matrices: Mapping[str, MatrixPlan]
    capacity: Mapping[str, int]
    num_chunks: int
    read_bytes: int
    decode_bytes: int

    @classmethod
    def of(cls, share: Share, rows: IntArray, matrices: Mapping[str, MatrixPlan], reader: BoxReader) -> RowPlan:
        """Return the plan of a share, with what it will cost `reader`."""
        num_chunks = read_bytes = decode_bytes = 0
        for plan in (box for matrix in matrices.values() for box in matrix.boxes):
            needed = reader.needed(plan)
            sizes = np.array([array.chunk_bytes for array in plan.request.arrays], dtype=np.int64)
            num_chunks += int(needed.sum())
            read_bytes += int(np.maximum(plan.chunks.length[needed], 0).sum())
            decode_bytes += int(sizes[plan.chunks.array[needed]].sum())
        capacity = {name: plan.num_elements for name, plan in matrices.items() if plan.lengths is not None}
        return cls(
            share=share, rows=rows, matrices=matrices, capacity=capacity,
            num_chunks=num_chunks, read_bytes=read_bytes, decode_bytes=decode_bytes,
        )  # fmt: skip
