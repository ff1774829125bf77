"""The compared readers; each returns the batches of a `Task`, with rows in the same order.

rankwise and annbatch are imported only when a reader is opened, because they need different interpreters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from _rows.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a reader is.

    Attributes:
        title: for tables.
        program: which process runs it.
        output: "rows" as they are stored, "dense" rows of a CSR matrix, or "genes": dense rows of chosen columns;
            "nothing" of the floor.
        is_epoch: whether it is a loader, which reads whole epochs in an order of its own instead of given requests.
        begins_early: whether it can begin to read before it is iterated.
    """

    title: str
    program: str
    output: str = "rows"
    is_epoch: bool = False
    begins_early: bool = False


KINDS = {
    "floor": Kind(title="floor: decode only", program="floor", output="nothing"),
    "ours": Kind(title="rankwise", program="ours"),
    "ours-unaided": Kind(title="rankwise, zarrs cannot be imported", program="unaided"),
    "annbatch": Kind(title="annbatch + zarrs", program="annbatch"),
    "memory": Kind(title="whole matrix in memory, rows by SciPy or NumPy", program="memory"),
    "ours-dense": Kind(title="rankwise, dense", program="ours", output="dense"),
    "annbatch-dense": Kind(title="annbatch + zarrs, dense", program="annbatch", output="dense"),
    "memory-dense": Kind(title="whole matrix in memory, dense by SciPy", program="memory", output="dense"),
    "ours-genes": Kind(title="rankwise, chosen genes dense", program="ours", output="genes"),
    "memory-genes": Kind(title="whole matrix in memory, chosen genes by SciPy", program="memory", output="genes"),
    "loader": Kind(title="rankwise Loader", program="ours", is_epoch=True, begins_early=True),
    "ordered": Kind(title="rankwise OrderedLoader", program="ours", is_epoch=True, begins_early=True),
    "ordered-genes": Kind(
        title="rankwise OrderedLoader, chosen genes dense", program="ours", output="genes", is_epoch=True
    ),
    "annbatch-loader": Kind(title="annbatch Loader + zarrs", program="annbatch", is_epoch=True),
    "memory-loader": Kind(title="whole matrix in memory, shuffled rows", program="memory", is_epoch=True),
}


class Reader(ABC):
    """Gives the batches of requests one after the other."""

    def prepare(self, numbers: Iterable[int]) -> None:  # noqa: B027  (most have nothing to do)
        """Do what does not count, before the clock starts; nothing unless a reader says otherwise."""

    def begin_early(self, number: int) -> None:
        """Begin to read an epoch that will be asked for; for loaders that can."""
        raise NotImplementedError(number)

    @abstractmethod
    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield the batches of the requests with these numbers; each may be overwritten by the next."""

    def close(self) -> None:  # noqa: B027
        """Give files and threads back; nothing unless a reader says otherwise."""


class Memory(Reader):
    """The whole matrix in memory: what the rows are, and what picking them alone costs."""

    def __init__(self, task: Task, output: str) -> None:
        import zarr

        self._task, self._output = task, output
        node = zarr.open_group(task.baseline, mode="r")["X"]
        if not task.sparse:
            self._matrix = node[:]
            return
        import scipy.sparse

        parts = tuple(node[name][:] for name in ("data", "indices", "indptr"))
        self._matrix = scipy.sparse.csr_matrix(parts, shape=task.shape)

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for number in numbers:
            rows = self._task.rows(number)
            for cut in self._task.cuts():
                yield shaped(self._matrix[rows[cut]], self._output, self._task)


class MemoryLoader(Memory):
    """Epochs of the whole matrix in memory, rows in any order."""

    def batches(self, numbers: Iterable[int]) -> Iterator[Any]:
        """Yield batches."""
        for number in numbers:
            rows = np.random.default_rng(number).permutation(self._task.shape[0])
            for first in range(0, len(rows), self._task.batch):
                yield self._matrix[rows[first : first + self._task.batch]]


def shaped(batch: Any, output: str, task: Task) -> Any:
    """Return a batch as a reader is asked for it."""
    if output == "genes":
        batch = batch[:, task.columns()]
    return batch.toarray() if output in ("dense", "genes") else batch


def open_reader(name: str, task: Task) -> Reader:
    """Return the reader of a name."""
    kind = KINDS[name]
    if kind.program == "memory":
        return MemoryLoader(task, kind.output) if kind.is_epoch else Memory(task, kind.output)
    if kind.program == "annbatch":
        from _rows.annbatch_reader import Annbatch, AnnbatchLoader

        return AnnbatchLoader(task) if kind.is_epoch else Annbatch(task, kind.output)
    if kind.is_epoch:
        from _rows.our_loaders import Ordered, Requests

        return Requests(task) if name == "loader" else Ordered(task, kind.output)
    from _rows.our_readers import Floor, Ours

    return Floor(task) if kind.program == "floor" else Ours(task, kind.output)
