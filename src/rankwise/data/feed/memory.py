"""`MemoryPool`: memory that is handed out, and used again once nobody looks at it any more."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.data.feed.allocating import allocate_bytes
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.data.feed.done import Done
    from rankwise.data.feed.lending import Lease

__all__ = ["MemoryPool"]

_WASTE, _LITTLE = 2.25, 4096
_PAGE_BYTES = 4096
_UNSAID_BYTES = 64 << 20  # so much more than is needed is nobody's concern
_SLACK = 1.125  # the rows of the next request hold a few elements more or less
_LOG = logging.getLogger("rankwise.data")


class _Piece:
    """Memory, and what must have happened before it is written again."""

    __slots__ = ("address", "busy", "memory")

    def __init__(self, memory: NDArray) -> None:
        self.memory, self.address = memory, memory.ctypes.data
        self.busy: Done | None = None


class _Owner:
    """The base of every view of a piece of memory that is out: a new one each time that the piece is handed out.

    NumPy keeps it as the ``base`` of its arrays, and whatever shares the memory keeps such an array: slices and
    transposes, tensors and the parts of sparse ones, DLPack capsules, matrices of SciPy, arrays of JAX. So it ends
    exactly when nobody can see the memory any more.
    """

    __slots__ = ("__array_interface__", "_give_back", "_lease", "_piece")

    def __init__(
        self, piece: _Piece, num_bytes: int, lease: Lease | None, give_back: Callable[[_Piece, Done | None], None]
    ) -> None:
        self._piece, self._lease, self._give_back = piece, lease, give_back
        self.__array_interface__ = {
            "data": (piece.address, False), "shape": (num_bytes,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        # Any thread may be here, in the middle of anything: a garbage collection, or `MemoryPool.take` itself. So it
        # waits for no lock. A forked process gets here with its own copy of the pool, which is no matter of its parent.
        self._give_back(self._piece, None if self._lease is None else self._lease.busy)


class MemoryPool:
    """Hands out arrays; memory whose arrays, views of them included, are all gone is handed out again.

    Fresh memory costs a page fault for every 4 KiB, which for sparse rows is as much as half of decoding them. A batch
    that is kept keeps its memory: the pool then takes new memory. Memory of far more than is needed is left to others:
    the short request at the end of a pass has its own, and who keeps labels does not keep the memory of images.
    Thread-safe.

    Args:
        capacity: pieces of memory that are remembered while nobody has them.
        pinned: allocate page-locked memory through torch, for asynchronous copies to a CUDA device.
        cap_bytes: most bytes of all pieces, those that are kept included; None = any.
        over_cap: makes the error of who would need more.
        speaks: whether to say once that kept batches take more memory than is needed without: on the main rank.
    """

    said = False  # once in a process

    def __init__(
        self,
        capacity: int = 6,
        *,
        pinned: bool = False,
        cap_bytes: int | None = None,
        over_cap: Callable[[str], Exception] = ConfigError,
        speaks: bool = False,
    ) -> None:
        self.capacity, self._pinned, self._cap_bytes, self._over_cap = capacity, pinned, cap_bytes, over_cap
        self._free: list[_Piece] = []
        # what finalizers write to: appending and popping are single steps for every thread
        self._returned: deque[_Piece] = deque()
        self._forgotten: deque[int] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._speaks, self._usual_bytes, self._batch_bytes = speaks, 0, 0
        self._num_bytes = 0
        self.num_pieces = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that was forked from the one that made the pool: its lock may be held for ever."""
        return self._pid != os.getpid()

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces: those that are out, and those that are remembered."""
        with self._lock:
            self._tidy()
            return self._num_bytes

    def take(self, count: int, dtype: DType, *, lease: Lease | None = None, exact: bool = False) -> NDArray:
        """Return an array [count] of undefined content, at an address that is a multiple of 64.

        Args:
            count: elements.
            dtype: of the array.
            lease: stays as long as the array is seen; the memory is not written again before what it waits for.
            exact: whether later arrays are as long: new memory then has nothing to spare.

        Raises:
            Exception: with what is kept this would be more than `cap_bytes`: what `over_cap` makes.
        """
        needed = count * dtype.itemsize
        with self._lock:
            self._tidy()
            piece = self._found(needed)
            is_new = piece is None
            if piece is None:
                piece = self._made(needed, needed if exact else int(needed * _SLACK))
        owner = _Owner(piece, needed, lease, self._give_back)
        if piece.busy is not None:
            piece.busy.synchronize()
            piece.busy = None
        taken: NDArray = np.asarray(owner)
        if is_new:
            # Whoever writes here and there only would else meet fresh pages for many requests to come
            taken[::_PAGE_BYTES] = 0
        return taken.view(dtype)

    def has_room(self) -> bool:
        """Return whether one more batch, as large as the largest so far, may be made beside what is out."""
        if self._cap_bytes is None:
            return True
        with self._lock:
            self._tidy()
            out = self._num_bytes - sum(len(piece.memory) for piece in self._free)
            return out + self._batch_bytes <= self._cap_bytes

    def no_room(self) -> Exception:
        """Return the error of who needs a batch more than there may be."""
        return self._over_cap(
            f"batches that are kept take {self._num_bytes} of the {self._cap_bytes} bytes that are allowed, and there "
            "is no room for the next one. Keep fewer of them, or copies of what you need of them (a kept view keeps "
            "its field of the whole batch), or allow more memory (max_host_memory_bytes=, max_gpu_memory_bytes=)"
        )

    def expect(self, num_batches: int, *, num_pieces: int, num_bytes: int) -> None:
        """Remember the memory of so many batches like one that was made, and say once if there is far more.

        Args:
            num_batches: in memory at a time while nobody keeps any.
            num_pieces: of each.
            num_bytes: of each.
        """
        self.capacity = max(self.capacity, num_batches * num_pieces)
        self._batch_bytes = max(self._batch_bytes, num_bytes)
        self._usual_bytes = max(self._usual_bytes, num_batches * num_bytes)
        if self._speaks and not MemoryPool.said and self._num_bytes > 2 * self._usual_bytes + _UNSAID_BYTES:
            MemoryPool.said = True
            _LOG.warning(
                "batches that are kept take memory of their own, beside what is read into in turn: %d MiB in all by "
                "now instead of %d. A kept view keeps its field of the whole batch, and of what was read with it; a "
                "copy of what is needed (clone(), batch.detach()) does not",
                self._num_bytes >> 20, self._usual_bytes >> 20,
            )  # fmt: skip

    def _found(self, needed: int) -> _Piece | None:
        """Take the smallest piece that suits; of these one that waits for nothing, and the one that was used last."""
        best, least, most = -1, (True, needed), _WASTE * needed + _LITTLE
        for place in range(len(self._free) - 1, -1, -1):
            piece = self._free[place]
            size = len(piece.memory)
            if needed <= size <= most and (best < 0 or (piece.busy is not None, size) < least):
                best, least = place, (piece.busy is not None, size)
        return None if best < 0 else self._free.pop(best)

    def _made(self, needed: int, num_bytes: int) -> _Piece:
        if self._cap_bytes is not None and self._num_bytes + num_bytes > self._cap_bytes:
            self._forget(len(self._free))
            num_bytes = max(needed, min(num_bytes, self._cap_bytes - self._num_bytes))
            if self._num_bytes + num_bytes > self._cap_bytes:
                raise self.no_room()
        self.num_pieces += 1
        self._num_bytes += num_bytes
        return _Piece(allocate_bytes(num_bytes, pinned=self._pinned))

    def _give_back(self, piece: _Piece, busy: Done | None) -> None:
        """Called by finalizers: see `_Owner`."""
        piece.busy = busy
        if busy is not None or len(self._returned) < self.capacity:  # what a copy still reads is not freed here
            self._returned.append(piece)
        else:
            self._forgotten.append(len(piece.memory))

    def _tidy(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        self._forget(len(self._free) - self.capacity)
        while self._forgotten:
            self._num_bytes -= self._forgotten.popleft()

    def _forget(self, count: int) -> None:
        """Forget so many pieces, those that were used longest ago first."""
        for piece in self._free[: max(0, count)]:
            if piece.busy is not None:
                piece.busy.synchronize()
            self._num_bytes -= len(piece.memory)
        del self._free[: max(0, count)]
