"""What is read of rows: the fields that are open and those that are read (`ChosenFields`), and the plan (`RowPlan`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
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
    choose_fields,
    shares,
)
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.memory.csr import one_row
from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields import FieldChoice, RowField, open_fields
from rankwise.data.rows.matrices import MatrixPlan
from rankwise.data.rows.obs import ObsColumn, read_column
from rankwise.data.rows.transforms import Log1pCounts
from rankwise.data.store import BoxPlan, BoxReader
from rankwise.errors import ConfigError

__all__ = ["ChosenFields", "RowFields", "RowPlan", "Shelf", "read_one"]


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


class Shelf:
    """Scratch memory for converting rows: one pool for each thread that reads at the same time, reused."""

    def __init__(self) -> None:
        self._held: list[MemoryPool] = []

    def __reduce__(self) -> tuple[type[Shelf], tuple[()]]:
        return Shelf, ()

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


@dataclass(frozen=True, kw_only=True)
class RowFields:
    """The fields to read of a row, by name."""

    matrices: Mapping[str, RowField]  # fields from matrices
    columns: Mapping[str, ObsColumn]  # fields from obs
    # a transform of the dense rows of one field before they are handed over; None = none
    change: Log1pCounts | None = None

    @cached_property
    def specs(self) -> dict[str, FieldSpec]:
        """Specs of the fields of a row, matrices first."""
        found = {name: field.spec for name, field in self.matrices.items()}
        return found | {name: column.spec for name, column in self.columns.items()}


_CHOICES = ("matrices", "obs", "dense", "genes", "dtype", "rows")


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenFields:
    """The fields of the rows of datasets."""

    datasets: tuple[AnyDataset, ...]
    choice: FieldChoice  # what the user requested
    opened: RowFields  # all open fields
    names: tuple[str, ...]  # the fields to read

    @classmethod
    def of(
        cls, datasets: tuple[AnyDataset, ...], choice: FieldChoice, *, known: Mapping[str, ObsColumn] | None = None
    ) -> ChosenFields:
        """Open the requested fields, and select all of them; `known` columns are not read again."""
        known = {} if known is None else known
        matrices = open_fields(datasets, choice)
        columns = {name: known.get(name) or read_column(datasets, name) for name in choice.obs}
        opened = RowFields(matrices=matrices, columns=columns)
        return cls(datasets=datasets, choice=choice, opened=opened, names=(*matrices, *columns))

    @cached_property
    def read(self) -> RowFields:
        """The fields to read."""
        if self.choice.is_open:
            raise ConfigError(
                "genes=... does not select variables, so these rows can be counted, split and ordered, but not read: "
                "use source.reading(genes=[...]), or pass genes=[...] to the loader"
            )
        change, names = self.opened.change, set(self.names)
        return RowFields(
            matrices={name: field for name, field in self.opened.matrices.items() if name in self.names},
            columns={name: column for name, column in self.opened.columns.items() if name in self.names},
            change=change if change is not None and {change.field, change.size or change.field} <= names else None,
        )

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """For each categorical column, the meaning of its codes."""
        found = {name: column.categories for name, column in self.opened.columns.items()}
        return {name: table for name, table in found.items() if table is not None}

    def changed(self, **changes: Any) -> ChosenFields:
        """Return other fields of the same datasets: some attributes of `FieldChoice` change."""
        try:
            choice = replace(self.choice, **changes)
        except TypeError:
            raise ConfigError(f"a RowSource accepts {', '.join(_CHOICES)}; got {', '.join(changes)}") from None
        return self.of(self.datasets, choice, known=self.opened.columns)

    def select(self, names: Sequence[str]) -> ChosenFields:
        """Return some of the fields to read."""
        return replace(self, names=choose_fields(self.names, names))

    def fused_with(self, batch_transform: Any) -> ChosenFields | None:
        """Return fields that apply a batch transform while they are read; None = not supported.

        Supported for `Log1pCounts` of dense rows; integers then become float32, as they do in the transform.
        """
        name = batch_transform.field if isinstance(batch_transform, Log1pCounts) else None
        matrices = self.opened.matrices
        if name not in matrices or name not in self.names:
            return None
        if batch_transform.size is not None and batch_transform.size not in set(self.opened.columns) & set(self.names):
            return None
        spec, made = matrices[name].spec, self
        if spec.ragged or len(spec.shape) != 1 or spec.dtype.kind not in "biuf":
            return None
        if spec.dtype.kind != "f":
            dtypes = {matrix: self.choice.dtype_of(matrix) for matrix in matrices}
            made = self.changed(dtype={**dtypes, name: np.float32}).select(self.names)
        return replace(made, opened=replace(made.opened, change=batch_transform))
