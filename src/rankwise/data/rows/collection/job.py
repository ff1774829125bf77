"""One write: its decisions, its file names, and its first pass, which moves all rows into buckets."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.buckets import Buckets, Placing, cut_datasets, find_repeats, hash_names, rename
from rankwise.data.rows.collection.inputs.tables import RowsOfColumns
from rankwise.data.rows.collection.journal import work_folder
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.data.rows.collection.ranks import Marks, Ranks, Task
from rankwise.data.rows.collection.union import Joined, group_ranks

_ELEMENT_BYTES = 80  # memory for an element of a matrix stored by columns while it is sorted
_REPEATS = "repeats.npy"


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


class Job:
    """One write.

    Args:
        folder: of the collection.
        joined: the inputs.
        options: the parameters of the call.
        facts: the decisions in its journal.
        ranks: who writes.
    """

    def __init__(
        self, folder: Path, joined: Joined, options: WriteOptions, facts: dict[str, Any], ranks: Ranks
    ) -> None:
        self.folder, self.work = folder, work_folder(folder)
        self.joined, self.options, self.facts, self.ranks = joined, options, facts, ranks
        self.edges = cut_datasets(joined.num_rows, options.dataset_rows(joined))  # the first place of each dataset
        self.names: tuple[str, ...] = tuple(facts["names"])  # of the new datasets
        groups = group_ranks(joined, options.groupby, facts["block_rows"]) if options.groupby else None
        shuffle, run = options.shuffle, options.shuffle_chunk_size
        self.placing = Placing(self.edges, seed=facts["seed"], shuffle=shuffle, run=run, groups=groups)
        self.marks = Marks(self.work / "done", ranks)
        # for files that only this process writes; no earlier process has used it
        self.piece = f"{ranks.rank}-{secrets.token_hex(6)}"
        cuts = [np.arange(start, stop, facts["bucket_rows"]) for start, stop in map(self.span, range(len(self.names)))]
        self.cuts: IntArray = np.concatenate([*cuts, self.edges[-1:]])  # int64[buckets + 1], first place of each bucket
        accepts = self._accepts("spill")
        self.buckets = Buckets(self.work / "buckets", self.cuts, joined.fields, self.piece, accepts)

    @cached_property
    def turned(self) -> dict[tuple[int, str], RowsOfColumns]:
        """Matrices that are stored by columns, by input and name."""
        rows, piece = self.facts["block_rows"], self.piece
        return {
            (number, name): RowsOfColumns(
                table, self.work / "turned" / f"{number}-{at}", rows, piece, self._accepts(f"turn-{number}-{at}")
            )
            for number, held in enumerate(self.joined.inputs)
            for at, (name, table) in enumerate(sorted(held.tables.items()))
            if table.by_columns and any(field.name == name for field in self.joined.matrices)
        }

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All rows of all inputs."""
        found: list[Block] = []
        first, block_rows = 0, self.facts["block_rows"]
        for which, held in enumerate(self.joined.inputs):
            for start in range(0, held.num_rows, block_rows):
                stop = min(start + block_rows, held.num_rows)
                found.append(Block(number=len(found), which=which, start=start, stop=stop, first=first + start))
            first += held.num_rows
        return tuple(found)

    def _accepts(self, kind: str) -> Callable[[str, int], bool]:
        """Return a check whether a process wrote a portion completely: the mark of its task names its piece."""
        return lambda piece, number: self.marks.notes.get(f"{kind}-{number}") == piece

    def span(self, dataset: int) -> tuple[int, int]:
        """Return the first and the last place + 1 of a dataset."""
        return int(self.edges[dataset]), int(self.edges[dataset + 1])

    def numbers(self, dataset: int) -> range:
        """Return the numbers of the buckets of a dataset."""
        return range(*np.searchsorted(self.cuts, self.span(dataset)).tolist())


def turn_tasks(job: Job) -> list[Task]:
    """Return tasks that turn matrices stored by columns."""
    size = max(1, job.options.budget // 12 // _ELEMENT_BYTES)
    tasks = []
    for turned in job.turned.values():
        for portion, start in enumerate(range(0, turned.num_elements, size)):
            stop = min(start + size, turned.num_elements)
            run, moved = partial(turned.spill, portion, start, stop), (stop - start) * _ELEMENT_BYTES
            tasks.append(Task(name=f"turn-{turned.folder.name}-{portion}", run=run, num_bytes=moved))
    return tasks


def spill_tasks(job: Job) -> list[Task]:
    """Return tasks that move blocks of rows into buckets."""
    row_bytes = [sum(held.tables[field.name].row_bytes for field in job.joined.matrices) for held in job.joined.inputs]
    return [
        Task(
            name=f"spill-{block.number}",
            run=partial(_spill, job, block),
            rows=block.stop - block.start,
            num_bytes=(block.stop - block.start) * row_bytes[block.which],
        )
        for block in job.blocks
    ]


def _spill(job: Job, block: Block) -> str:
    joined, which, start, stop = job.joined, block.which, block.start, block.stop
    names = joined.index.block(which, start, stop)
    folder = job.work / "hashes"
    folder.mkdir(exist_ok=True)
    half = folder / f".{block.number}-{job.piece}.npy"
    _save(half, hash_names(names))
    half.rename(folder / f"{block.number}.npy")
    values = []
    for field in joined.matrices:
        source = job.turned.get((which, field.name)) or joined.inputs[which].tables[field.name]
        values.append(joined.shape(which, field, source.block(start, stop)))
    values += [names, *(column.block(which, start, stop) for column in joined.columns)]
    return job.buckets.add(block.number, job.placing.places(block.rows), values)


def name_tasks(job: Job) -> list[Task]:
    """Return the task that counts names, on one process, by hash: 8 bytes per row, and as much again for duplicates.

    Its note says whether any name needs a suffix. Then a file has the number of each suffix by place, 0 = none.
    """
    return [Task(name="names", run=partial(_count, job))]


def repeats_of(job: Job, dataset: int) -> IntArray | None:
    """Return the numbers of the suffixes of the names of a dataset, 0 = no suffix; None = no name has one."""
    if not job.marks.notes["names"]:
        return None
    found: IntArray = np.load(job.work / _REPEATS, mmap_mode="r")[slice(*job.span(dataset))]
    return found


def _count(job: Job) -> bool:
    hashes = np.concatenate([np.load(job.work / "hashes" / f"{block.number}.npy") for block in job.blocks])
    repeats = find_repeats(hashes)
    if not repeats.any():
        return False
    _avoid_names_that_are_there(job, hashes, repeats)
    by_place = np.zeros(repeats.shape, dtype=np.int64)
    for block in job.blocks:
        by_place[job.placing.places(block.rows)] = repeats[block.rows]
    _save(job.work / _REPEATS, by_place)
    return True


def _save(path: Path, array: NDArray) -> None:
    """Write an npy file. On a full disk `numpy.save` to a file raises without an errno, and a mapped file kills."""
    with path.open("wb") as file:
        made: Any = SimpleNamespace(write=file.write)
        np.save(made, array)


def _avoid_names_that_are_there(job: Job, hashes: NDArray, repeats: IntArray) -> None:
    """A name with a suffix may equal another row's name: give such rows a number larger than all others."""
    held = np.sort(hashes)
    for block in job.blocks:
        mine = repeats[block.first : block.first + block.stop - block.start]
        rows = np.flatnonzero(mine)
        if not len(rows):
            continue
        names = job.joined.index.block(block.which, block.start, block.stop)[rows]
        while len(rows):
            wanted = hash_names(rename(names, mine[rows]))
            at = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
            taken = np.flatnonzero(held[at] == wanted)
            rows, names = rows[taken], names[taken]
            mine[rows] += len(held)
