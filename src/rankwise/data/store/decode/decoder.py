"""`Decoder`: what reads, decodes and places chunks, and the memory that one of its threads does it in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol, Self

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.decode.dense_rows import DenseRows
from rankwise.data.store.decode.tasks import ChunkTasks, address_of

__all__ = ["Decoder", "Scratch", "Spreader", "check_run"]

_ALIGNMENT = 64
_STEP = 2**16


class Scratch:
    """Buffers of one thread: they grow to the largest chunk met, are reused, and are freed at the end.

    Never used by two threads at once. A context manager; also freed when the last reference goes.

    Attributes:
        read: uint8 buffer for encoded bytes.
        decode: uint8 buffer for one decoded chunk, small enough for the second-level cache if chunks are.
        job: int64 table through which Python and the compiled loop talk.
        stage: uint8 buffer for a row of the output.
        blank: uint8 buffer for dense rows, zero whenever no chunk is at work.
        rows: rows of fill values, of any dtype.
        context: address of a decoder's own memory (of zstd), 0 until one is needed.
    """

    def __init__(self) -> None:
        self.read: NDArray = _aligned(0)
        self.decode: NDArray = _aligned(0)
        self.stage: NDArray = _aligned(0)
        self.blank: NDArray = _aligned(0)
        self.job: IntArray = np.zeros(0, dtype=np.int64)
        self.rows: NDArray = _aligned(0)
        self.context = 0
        self._free: weakref.finalize[[int], Scratch] | None = None

    def reserve(self, *, read_bytes: int, decode_bytes: int, job_slots: int) -> None:
        """Make the buffers at least this large."""
        if len(self.read) < read_bytes:
            self.read = _aligned(read_bytes)
        if len(self.decode) < decode_bytes:
            self.decode = _aligned(decode_bytes)
        if len(self.job) < job_slots:
            self.job = np.zeros(job_slots, dtype=np.int64)

    def reserve_stage(self, num_bytes: int) -> None:
        """Make room for a row of the output."""
        if len(self.stage) < num_bytes:
            self.stage = _aligned(num_bytes)

    def reserve_blank(self, num_bytes: int) -> None:
        """Make room for dense rows."""
        if len(self.blank) < num_bytes:
            self.blank = _aligned(num_bytes)
            self.blank[:] = 0

    def wipe(self) -> None:
        """Make the memory for dense rows blank again, after chunks failed that rows were waiting for."""
        self.blank[:] = 0

    def ensure_context(self, make: Callable[[], int], free: Callable[[int], object]) -> None:
        """Create the decoder's context if there is none yet.

        Raises:
            MemoryError: it cannot be created.
        """
        if self.context:
            return
        self.context = make()
        if not self.context:
            raise MemoryError("no memory for the context of a decoder")
        self._free = weakref.finalize(self, free, self.context)
        self._free.atexit = False  # at the exit of the interpreter a thread may still be decoding with it

    def close(self) -> None:
        """Free everything; using it again allocates anew."""
        if self._free is not None:
            self._free()
        self.context, self._free = 0, None
        self.read, self.decode, self.stage, self.blank, self.rows = (_aligned(0) for _ in range(5))
        self.job = np.zeros(0, dtype=np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _aligned(num_bytes: int) -> NDArray:
    """Return an uninitialised buffer that starts at a cache line: unshuffling falls back to a copy on others."""
    whole = -(-num_bytes // _STEP) * _STEP
    block: NDArray = np.empty(whole + _ALIGNMENT, dtype=np.uint8)
    skip = -address_of(block) % _ALIGNMENT
    return block[skip : skip + whole]


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
