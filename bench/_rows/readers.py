"""The readers that are compared; each gives the batches of a `Task`, in the same order of rows.

Nothing of rankwise or annbatch is imported before a reader is opened: their interpreters differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from _rows.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a reader is.

    Attributes:
        title: for tables.
        program: which process runs it.
        output: "rows" as they are stored, "dense" rows of a CSR matrix, or "genes": dense rows of chosen columns;
            "nothing" of the floor.
    """

    title: str
    program: str
    output: str = "rows"


KINDS = {
    "floor": Kind(title="floor: decode only", program="floor", output="nothing"),
    "ours": Kind(title="rankwise", program="ours"),
    "annbatch": Kind(title="annbatch + zarrs", program="annbatch"),
    "memory": Kind(title="whole matrix in memory, rows by SciPy or NumPy", program="memory"),
    "ours-dense": Kind(title="rankwise, dense", program="ours", output="dense"),
    "annbatch-dense": Kind(title="annbatch + zarrs, dense", program="annbatch", output="dense"),
    "memory-dense": Kind(title="whole matrix in memory, dense by SciPy", program="memory", output="dense"),
    "ours-genes": Kind(title="rankwise, chosen genes dense", program="ours", output="genes"),
    "memory-genes": Kind(title="whole matrix in memory, chosen genes by SciPy", program="memory", output="genes"),
}


class Reader(ABC):
    """Gives the batches of requests one after the other."""

    def prepare(self, numbers: Iterable[int]) -> None:  # noqa: B027  (most have nothing to do)
        """Do what does not count, before the clock starts; nothing unless a reader says otherwise."""

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


def shaped(batch: Any, output: str, task: Task) -> Any:
    """Return a batch as a reader is asked for it."""
    if output == "genes":
        batch = batch[:, task.columns()]
    return batch.toarray() if output in ("dense", "genes") else batch


def open_reader(name: str, task: Task) -> Reader:
    """Return the reader of a name."""
    kind = KINDS[name]
    if kind.program == "memory":
        return Memory(task, kind.output)
    if kind.program == "annbatch":
        from _rows.annbatch_reader import Annbatch

        return Annbatch(task, kind.output)
    from _rows.our_readers import Floor, Ours

    return Floor(task) if kind.program == "floor" else Ours(task, kind.output)
