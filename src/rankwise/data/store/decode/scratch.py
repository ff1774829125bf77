"""`Scratch`: the memory that one thread reads and decodes into, again and again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store.decode.tasks import address_of

__all__ = ["Scratch"]

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _aligned(num_bytes: int) -> NDArray:
    """Return an uninitialised buffer that starts at a cache line: unshuffling falls back to a copy on others."""
    whole = -(-num_bytes // _STEP) * _STEP
    block: NDArray = np.empty(whole + _ALIGNMENT, dtype=np.uint8)
    skip = -address_of(block) % _ALIGNMENT
    return block[skip : skip + whole]
