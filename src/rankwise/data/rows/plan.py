"""`RowPlan`: what a share needs of the stores; and memory in which it is read, also for a single sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import (
    BatchBuffer,
    FieldSpec,
    IntArray,
    ListedIds,
    OrderState,
    ReadReport,
    Share,
    Step,
    shares,
)
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.memory.csr import one_row
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.matrices.stacks import MatrixPlan
from rankwise.data.store import BoxPlan, BoxReader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowPlan:
    """Implements `Plan`."""

    share: Share
    rows: IntArray  # int64[B], its rows over all datasets
    matrices: Mapping[str, MatrixPlan]  # for each matrix, the plan for its rows
    boxes: Sequence[BoxPlan]  # those of all matrices
    capacity: Mapping[str, int]  # for each ragged field, the elements of the batch
    num_chunks: int  # chunks to decode, without those already in the cache
    read_bytes: int  # encoded bytes to read, as far as known in advance
    decode_bytes: int  # bytes to decode

    @classmethod
    def of(cls, share: Share, rows: IntArray, matrices: Mapping[str, MatrixPlan], reader: BoxReader) -> RowPlan:
        """Return the plan of a share, with its costs for `reader`."""
        num_chunks = read_bytes = decode_bytes = 0
        boxes = [box for matrix in matrices.values() for box in matrix.boxes]
        for plan in boxes:
            needed = reader.needed(plan)
            sizes = np.array([array.chunk_bytes for array in plan.request.arrays], dtype=np.int64)
            num_chunks += int(needed.sum())
            read_bytes += int(np.maximum(plan.chunks.length[needed], 0).sum())
            decode_bytes += int(sizes[plan.chunks.array[needed]].sum())
        capacity = {name: plan.num_elements for name, plan in matrices.items() if plan.lengths is not None}
        return cls(
            share=share, rows=rows, matrices=matrices, boxes=boxes, capacity=capacity,
            num_chunks=num_chunks, read_bytes=read_bytes, decode_bytes=decode_bytes,
        )  # fmt: skip


class ScratchPools:
    """Scratch memory for converting rows: one pool for each thread that reads at the same time, reused."""

    def __init__(self) -> None:
        self._held: list[MemoryPool] = []

    def __reduce__(self) -> tuple[type[ScratchPools], tuple[()]]:
        return ScratchPools, ()

    @contextmanager
    def memory(self, num_pieces: int) -> Iterator[MemoryPool]:
        """Lend a pool; make one with `num_pieces` pieces if none is free."""
        try:
            lent = self._held.pop()
        except IndexError:
            lent = MemoryPool(num_pieces)
        try:
            yield lent
        finally:
            self._held.append(lent)

    def clear(self) -> None:
        """Free the memory."""
        self._held.clear()


def read_one(
    sample: int, specs: Mapping[str, FieldSpec], read: Callable[[Share, BatchBuffer], ReadReport]
) -> dict[str, Any]:
    """Return the fields of one sample, in newly allocated memory."""
    ids = np.array([sample], dtype=np.int64)
    state = OrderState(seed=0, epoch=0, position=1, recipe="")
    members = ListedIds(ids=ids, lanes=np.zeros_like(ids))
    step = Step(epoch=0, index=0, start=0, count=1, size=1, members=members, resume=state)
    buffer = HostBuffer()
    for error in read(shares(step, rank=0, world_size=1, num_micro=1)[0], buffer).errors:
        raise error
    widths = {name: spec.shape[0] if spec.ragged else None for name, spec in specs.items()}
    return {name: one_row(buffer.arrays(name), 0, width) for name, width in widths.items()}
