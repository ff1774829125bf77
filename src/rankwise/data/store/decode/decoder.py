"""`Decoder`: what reads, decodes and places chunks."""

from __future__ import annotations

from typing import Protocol

from rankwise.data.contract import NDArray
from rankwise.data.store.decode.dense_rows import DenseRows
from rankwise.data.store.decode.scratch import Scratch
from rankwise.data.store.decode.tasks import ChunkTasks

__all__ = ["Decoder", "Spreader", "check_run"]


class Decoder(Protocol):
    """Reads, decodes and places chunks; one for all threads.

    Attributes:
        name: "kernel" or "threads".
    """

    name: str

    def run(self, tasks: ChunkTasks, first: int, last: int, out: NDArray, scratch: Scratch) -> None:
        """Do the chunks from `first` to `last` (exclusive), and write how each went into ``tasks.status``.

        Args:
            tasks: what is to be done; several threads may work on different chunks of it.
            first: first chunk.
            last: end of the chunks.
            out: the output, C-contiguous and writeable.
            scratch: memory of the calling thread.

        Raises:
            ValueError: chunks or targets that are not there: a bug in the planner, not damage.
        """


class Spreader(Protocol):
    """A decoder that can place elements of sparse rows in dense ones."""

    def spread(  # noqa: PLR0917
        self, tasks: ChunkTasks, dense: DenseRows, first: int, last: int, out: NDArray, scratch: Scratch,
        *, named: tuple[ChunkTasks, Scratch] | None = None,
    ) -> None:  # fmt: skip
        """Do the chunks from `first` to `last` (exclusive), and write how it went into the statuses and marks.

        A row that one target fills comes out whole; one of several pieces must be zero before.

        With `named`, columns are decoded chunk by chunk beside their elements, and looked at where they are: into the
        memory for columns come only those of rows of several pieces, of marked ones, and of missing chunks. A chunk
        whose columns fail gets their status.

        Args:
            tasks: what is to be done; `is_castable` to the dtype of the output.
            dense: where it goes.
            first: first chunk.
            last: end of the chunks.
            out: [B, width], C-contiguous and writeable, of elements of 1, 2, 4 or 8 bytes.
            scratch: memory of the calling thread.
            named: chunks of the columns, with the same targets, castable to the dtype of the memory for columns; and
                other memory of the thread. None = columns were decoded before.

        Raises:
            ValueError: tables do not fit together: a bug in the planner, not damage.
        """


def check_run(tasks: ChunkTasks, first: int, last: int, out: NDArray) -> None:
    """Refuse a run that would touch what is not there."""
    if not (0 <= first <= last <= len(tasks)):
        raise ValueError(f"chunks {first} to {last} of {len(tasks)}")
    if not (out.flags.c_contiguous and out.flags.writeable) or tasks.reach >= out.size:
        raise ValueError(
            f"targets reach element {tasks.reach} of an output of {out.size}, which must be C-contiguous and writeable"
        )
