"""Between the passes: names of observations that come twice are found."""

from __future__ import annotations

from functools import partial

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.crew import Task
from rankwise.data.rows.collection.moving import Text
from rankwise.data.rows.collection.naming import find_repeats, hash_names, rename
from rankwise.data.rows.collection.steps.job import Job

__all__ = ["name_tasks", "repeats_of"]

_FILE = "repeats.npy"


def name_tasks(job: Job) -> list[Task]:
    """Names are counted by one process, by their hashes: 8 bytes a row, and as much again where names come twice."""
    return [Task(name="names", run=partial(_count, job))]


def repeats_of(job: Job, start: int, stop: int) -> IntArray | None:
    """Return the number behind the names of rows of some places, 0 = none; None = behind no name at all."""
    if not job.marks.note("names"):
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
    """A name with its number may be another row's own name: such rows take a number beyond all others."""
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
