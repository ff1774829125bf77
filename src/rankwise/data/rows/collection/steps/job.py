"""`Job`: everything that the steps of a writing share."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.crew import Crew, Marks
from rankwise.data.rows.collection.joining import Joined
from rankwise.data.rows.collection.moving import Buckets
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.data.rows.collection.placing import Placing
from rankwise.data.rows.collection.turning import Turned

__all__ = ["Block", "Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring rows of an input.

    Attributes:
        number: of the block, over all inputs.
        which: number of the input.
        start: first row in the input.
        stop: last row + 1.
        first: first row over all inputs.
    """

    number: int
    which: int
    start: int
    stop: int
    first: int

    @property
    def rows(self) -> IntArray:
        """Its rows, numbered over all inputs."""
        return np.arange(self.first, self.first + self.stop - self.start, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One writing.

    Attributes:
        work: folder beside the collection.
        joined: the inputs.
        options: how.
        edges: int64[datasets + 1], places at which datasets begin.
        placing: which row goes where.
        names: of the datasets.
        bucket_rows: rows of a bucket.
        block_rows: rows that are read at once.
        crew: who writes.
        marks: what is done.
    """

    work: Path
    joined: Joined
    options: WriteOptions
    edges: IntArray
    placing: Placing
    names: tuple[str, ...]
    bucket_rows: int
    block_rows: int
    crew: Crew
    marks: Marks

    @cached_property
    def piece(self) -> str:
        """Name of the files that this process alone writes: of no process before it."""
        return f"{self.crew.rank}-{secrets.token_hex(6)}"

    @cached_property
    def cuts(self) -> IntArray:
        """Places at which buckets begin: int64[buckets + 1]; edges of datasets are among them."""
        rows = self.bucket_rows
        parts = [
            start + np.arange(-(-(stop - start) // rows), dtype=np.int64) * rows
            for start, stop in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True)
        ]
        return np.concatenate([*parts, self.edges[-1:]])

    @cached_property
    def buckets(self) -> Buckets:
        """The rows on their way."""
        accepts = self.accepts("spill")
        return Buckets(self.work / "buckets", self.cuts, self.joined.fields, self.piece, accepts)

    @cached_property
    def turned(self) -> dict[tuple[int, str], Turned]:
        """Matrices that are stored by columns, by input and name."""
        return {
            (number, name): Turned(
                table,
                self.work / "turned" / f"{number}-{at}",
                self.block_rows,
                self.piece,
                self.accepts(f"turn-{number}-{at}"),
            )
            for number, held in enumerate(self.joined.inputs)
            for at, (name, table) in enumerate(sorted(held.tables.items()))
            if table.by_columns and any(field.name == name for field in self.joined.matrices)
        }

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All rows of all inputs."""
        found: list[Block] = []
        first = 0
        for which, held in enumerate(self.joined.inputs):
            for start in range(0, held.num_rows, self.block_rows):
                stop = min(start + self.block_rows, held.num_rows)
                found.append(Block(number=len(found), which=which, start=start, stop=stop, first=first + start))
            first += held.num_rows
        return tuple(found)

    def accepts(self, kind: str) -> Any:
        """Return what says whether a portion of a piece came in whole: the mark of its task names the piece."""
        notes: dict[int, Any] = {}

        def accept(piece: str, number: int) -> bool:
            if number not in notes:
                name = f"{kind}-{number}"
                notes[number] = self.marks.note(name) if name in self.marks.done() else None
            return bool(notes[number] == piece)

        return accept

    def numbers(self, dataset: int) -> range:
        """Return the numbers of the buckets of a dataset."""
        first, last = np.searchsorted(self.cuts, self.edges[dataset : dataset + 2]).tolist()
        return range(first, last)

    def matrix(self, block: Block, which: int) -> Any:
        """Read a block of a matrix, as it goes into the collection."""
        field = self.joined.matrices[which]
        turned = self.turned.get((block.which, field.name))
        source = turned if turned is not None else self.joined.inputs[block.which].tables[field.name]
        return self.joined.shape(block.which, field, source.block(block.start, block.stop))
