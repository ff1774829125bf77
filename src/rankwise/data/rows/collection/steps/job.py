"""One write: what it reads, where it writes, and its file names."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.buckets import Buckets, Text
from rankwise.data.rows.collection.inputs import Turned
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.data.rows.collection.places import Placing, find_repeats, hash_names, rename
from rankwise.data.rows.collection.ranks import Marks, Ranks, Task
from rankwise.data.rows.collection.union import Joined

__all__ = ["Block", "Job", "name_tasks", "repeats_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring rows of an input."""

    number: int  # of the block, over all inputs
    which: int  # number of the input
    start: int  # first row in the input
    stop: int  # last row + 1
    first: int  # first row over all inputs

    @property
    def rows(self) -> IntArray:
        """Its row numbers, over all inputs."""
        return np.arange(self.first, self.first + self.stop - self.start, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One write."""

    work: Path  # folder beside the collection
    joined: Joined
    options: WriteOptions
    edges: IntArray  # int64[datasets + 1], first place of each dataset
    placing: Placing
    names: tuple[str, ...]
    bucket_rows: int  # rows of a bucket
    block_rows: int  # rows to read at once
    ranks: Ranks
    marks: Marks

    @cached_property
    def piece(self) -> str:
        """Name for files that only this process writes; no earlier process has used it."""
        return f"{self.ranks.rank}-{secrets.token_hex(6)}"

    @cached_property
    def cuts(self) -> IntArray:
        """First place of each bucket: int64[buckets + 1]; includes the edges of datasets."""
        rows = self.bucket_rows
        parts = [
            start + np.arange(-(-(stop - start) // rows), dtype=np.int64) * rows
            for start, stop in zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), strict=True)
        ]
        return np.concatenate([*parts, self.edges[-1:]])

    @cached_property
    def buckets(self) -> Buckets:
        """The rows in transit."""
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

    def accepts(self, kind: str) -> Callable[[str, int], bool]:
        """Return a check whether a process wrote a portion completely: the mark of its task names its piece."""
        return lambda piece, number: self.marks.notes.get(f"{kind}-{number}") == piece

    def numbers(self, dataset: int) -> range:
        """Return the numbers of the buckets of a dataset."""
        first, last = np.searchsorted(self.cuts, self.edges[dataset : dataset + 2]).tolist()
        return range(first, last)

    def matrix(self, block: Block, which: int) -> Any:
        """Read a block of a matrix in the form of the collection."""
        field = self.joined.matrices[which]
        turned = self.turned.get((block.which, field.name))
        source = turned if turned is not None else self.joined.inputs[block.which].tables[field.name]
        return self.joined.shape(block.which, field, source.block(block.start, block.stop))


_FILE = "repeats.npy"


def name_tasks(job: Job) -> list[Task]:
    """Return the task that counts names, on one process, by hash: 8 bytes per row, and as much again for duplicates."""
    return [Task(name="names", run=partial(_count, job))]


def repeats_of(job: Job, start: int, stop: int) -> IntArray | None:
    """Return the suffix number of the names of some places, 0 = no suffix; None = no name has a suffix."""
    if not job.marks.notes["names"]:
        return None
    found: IntArray = np.load(job.work / _FILE, mmap_mode="r")[start:stop]
    return found


def _count(job: Job) -> bool:
    folder = job.work / "hashes"
    hashes = np.concatenate([np.load(folder / f"{block.number}.npy") for block in job.blocks])
    repeats = find_repeats(hashes)
    found = bool(repeats.any())
    if found:
        _avoid_names_that_are_there(job, hashes, repeats)
        by_place = np.lib.format.open_memmap(job.work / _FILE, mode="w+", dtype=np.int64, shape=repeats.shape)
        for block in job.blocks:
            by_place[job.placing.places(block.rows)] = repeats[block.rows]
        by_place.flush()
    return found


def _avoid_names_that_are_there(job: Job, hashes: NDArray, repeats: IntArray) -> None:
    """A name with a suffix may equal another row's name: give such rows a number larger than all others."""
    held = np.sort(hashes)
    for block in job.blocks:
        mine = repeats[block.rows[0] : block.rows[-1] + 1]
        rows = np.flatnonzero(mine)
        if len(rows):
            names = job.joined.index.block(block.which, block.start, block.stop)
            _renumber(names.take(rows), rows, mine, held)


def _renumber(names: Text, rows: IntArray, repeats: IntArray, held: NDArray) -> None:
    while len(rows):
        wanted = hash_names(rename(names, repeats[rows]))
        at = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
        taken = np.flatnonzero(held[at] == wanted)
        rows, names = rows[taken], names.take(taken)
        repeats[rows] += len(held)
