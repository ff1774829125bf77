"""`Decoder`: what reads, decodes and places chunks."""

from __future__ import annotations

from typing import Protocol

from rankwise.data.contract import NDArray
from rankwise.data.store.decode.scratch import Scratch
from rankwise.data.store.decode.tasks import ChunkTasks

__all__ = ["Decoder", "check_run"]


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


def check_run(tasks: ChunkTasks, first: int, last: int, out: NDArray) -> None:
    """Refuse a run that would touch what is not there."""
    if not (0 <= first <= last <= len(tasks)):
        raise ValueError(f"chunks {first} to {last} of {len(tasks)}")
    if not (out.flags.c_contiguous and out.flags.writeable) or tasks.reach >= out.size:
        raise ValueError(
            f"targets reach element {tasks.reach} of an output of {out.size}, which must be C-contiguous and writeable"
        )
