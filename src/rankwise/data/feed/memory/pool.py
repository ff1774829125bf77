"""Memory for batches, aligned for every consumer and reused once no view of it is left."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.data.feed.memory.lease import Done, Lease

_ALIGNMENT = 64  # XLA copies arrays with a smaller alignment


def allocate_bytes(num_bytes: int, *, pinned: bool) -> NDArray:
    """Return uint8[num_bytes] at an address that is a multiple of 64; the array keeps its memory alive.

    Args:
        num_bytes: how many.
        pinned: page-locked, for asynchronous copies to a CUDA device; taken from torch.
    """
    if pinned:
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    whole = np.empty(num_bytes + _ALIGNMENT, dtype=np.uint8)
    first = -whole.ctypes.data % _ALIGNMENT
    return whole[first : first + num_bytes]


_WASTE, _LITTLE = 2.25, 4096
_PAGE_BYTES = 4096
_SMALL_EXCESS_BYTES = 64 << 20  # do not warn about less excess than this
_SLACK = 1.125  # the next request may need a few elements more
_LOG = logging.getLogger("rankwise.data")


class _Memory(np.ndarray):
    """An array class at which NumPy stops: a view of a view keeps as its base the first array of another class."""


class _Piece:
    """A piece of memory, and all that must happen before it is written again."""

    __slots__ = ("busy", "memory", "num_bytes", "turn")

    def __init__(self, memory: NDArray) -> None:
        self.memory, self.num_bytes = memory.view(_Memory), len(memory)
        self.busy: tuple[Done, ...] = ()
        self.turn = 0


class _Owner(np.ndarray):
    """The base of every view of a piece of memory in use; recreated each time that the piece is handed out.

    NumPy keeps it as the ``base`` of its arrays, and everything that shares the memory keeps such an array: slices and
    transposes, tensors and the parts of sparse ones, DLPack capsules, SciPy matrices, JAX arrays. So it is destroyed
    exactly when nothing sees the memory any more. A slice of the owner itself (``x.base[2:]``) has its class, too: it
    has no piece to give back, and keeps the owner as its base.
    """

    __slots__ = ("give_back", "lease", "piece")
    give_back: Callable[[_Piece, tuple[Done, ...]], None]
    lease: Lease | None
    piece: _Piece

    def __del__(self) -> None:
        # Any thread may run this at any point: a garbage collection, even inside `MemoryPool.take`. So it takes no
        # lock. A forked process runs it on its own copy of the pool; the parent's pool does not change.
        try:
            piece, lease = self.piece, self.lease
        except AttributeError:
            return
        self.give_back(piece, () if lease is None else lease.busy)


class MemoryPool:
    """Hands out arrays; the memory of an array is reused once the array and all views of it are gone.

    Fresh memory costs a page fault for every 4 KiB; for sparse rows that is up to half the cost of decoding. A batch
    that is kept keeps its memory: the pool then allocates more. A request never gets a piece far larger than it needs:
    the short batch at the end of a pass has memory of its own, and keeping labels does not keep the memory of images.
    Thread-safe.

    Args:
        capacity: number of free pieces that are kept for reuse.
        pinned: allocate page-locked memory through torch, for asynchronous copies to a CUDA device.
        cap_bytes: most bytes of all pieces, those that are kept included; None = any.
        over_cap: makes the error for a request above `cap_bytes`, or a batch above the limit of its buffer.
        warns: whether to warn once that kept batches need extra memory; True on the main rank.
    """

    warned = False  # once per process

    def __init__(
        self,
        capacity: int = 6,
        *,
        pinned: bool = False,
        cap_bytes: int | None = None,
        over_cap: Callable[[str], Exception] = ConfigError,
        warns: bool = False,
    ) -> None:
        self.capacity, self._pinned, self._cap_bytes, self.over_cap = capacity, pinned, cap_bytes, over_cap
        self._free: dict[int, deque[_Piece]] = {}  # by size, each in the order of return
        self._num_free = self._num_free_bytes = self._turn = 0
        # finalizers append to these: append and popleft are atomic in every thread
        self._returned: deque[_Piece] = deque()
        self._forgotten: deque[int] = deque()
        # Guards the lists and their sums, except the deques that finalizers append to. Never held while `take` waits
        # for a device.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._warns, self._usual_bytes, self._batch_bytes = warns, 0, 0
        self._num_bytes = 0
        self.num_pieces = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that made the pool: its lock may then be held for ever."""
        return self._pid != os.getpid()

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces: those in use, and the free ones."""
        with self._lock:
            self._tidy()
            return self._num_bytes

    def take(self, count: int, dtype: DType, *, lease: Lease | None = None, exact: bool = False) -> NDArray:
        """Return an array [count] of undefined content, at an address that is a multiple of 64.

        Args:
            count: elements.
            dtype: of the array.
            lease: lives as long as the array or a view of it; the memory is rewritten only after `lease.busy`.
            exact: whether later arrays have the same length: then new memory gets no slack.

        Raises:
            Exception: made by `over_cap`: with the kept batches this would exceed `cap_bytes`.
        """
        needed = count * dtype.itemsize
        with self._lock:
            self._tidy()
            piece = self._found(needed)
            is_new = piece is None
            if piece is None:
                piece = self._made(needed, needed if exact else int(needed * _SLACK))
        if piece.busy:
            # Wait before the owner exists: the end of an owner would mark the piece as not busy. If Ctrl-C arrives
            # here, the next user must not overwrite what a device still reads.
            try:
                for done in piece.busy:
                    done.synchronize()
            except BaseException:
                self._returned.append(piece)
                raise
            piece.busy = ()
        owner = _Owner((needed,), np.uint8, buffer=piece.memory)
        owner.give_back, owner.lease, owner.piece = self._give_back, lease, piece
        if is_new:
            # Touch every page now: sparse writers would otherwise meet page faults in many later requests
            owner[::_PAGE_BYTES] = 0
        return np.ndarray((count,), dtype, buffer=owner)

    def has_room(self) -> bool:
        """Return whether there is room for one more batch, as large as the largest so far, beside those in use."""
        if self._cap_bytes is None:
            return True
        with self._lock:
            self._tidy()
            return self._num_bytes - self._num_free_bytes + self._batch_bytes <= self._cap_bytes

    def no_room(self) -> Exception:
        """Return the error for a consumer that waits while kept batches use up the memory."""
        # Without the lock: `_made` calls this with the lock held. The number is only for the message.
        return self.over_cap(
            f"batches that are kept use {self._num_bytes} of the {self._cap_bytes} bytes that are allowed, and there "
            "is no room for the next one. Keep fewer batches, or copy what you need from them (a kept view keeps "
            "its field of the whole batch), or allow more memory (max_host_memory_bytes=, max_gpu_memory_bytes=)"
        )

    def expect(self, num_batches: int, *, num_pieces: int, num_bytes: int) -> None:
        """Set the number of pieces to keep from the size of a batch; warn once if far more memory is in use.

        Args:
            num_batches: batches in memory at a time if the consumer keeps none.
            num_pieces: pieces of each batch.
            num_bytes: bytes of each batch.
        """
        # No lock: at worst the update of one of two threads is lost, and its next batch repeats it.
        self.capacity = max(self.capacity, num_batches * num_pieces)
        self._batch_bytes = max(self._batch_bytes, num_bytes)
        self._usual_bytes = max(self._usual_bytes, num_batches * num_bytes)
        if self._warns and not MemoryPool.warned and self._num_bytes > 2 * self._usual_bytes + _SMALL_EXCESS_BYTES:
            MemoryPool.warned = True
            _LOG.warning(
                "batches that are kept use memory in addition to the buffers that are reused: %d MiB in total "
                "now instead of %d. A kept view keeps its field of the whole batch and of the steps read with it; a "
                "copy of what is needed (clone(), batch.detach()) does not",
                self._num_bytes >> 20, self._usual_bytes >> 20,
            )  # fmt: skip

    def _found(self, needed: int) -> _Piece | None:
        """Take the smallest piece that fits; prefer one that is not busy, then the one used last."""
        most = _WASTE * needed + _LITTLE
        sizes = sorted([size for size in self._free if needed <= size <= most])
        for size in sizes:
            if not self._free[size][-1].busy:
                return self._off_the_list(self._free[size].pop())
        for size in sizes:
            piece = next((piece for piece in reversed(self._free[size]) if not piece.busy), None)
            if piece is not None:
                self._free[size].remove(piece)
                return self._off_the_list(piece)
        return self._off_the_list(self._free[sizes[0]].pop()) if sizes else None

    def _off_the_list(self, piece: _Piece) -> _Piece:
        if not self._free[piece.num_bytes]:
            del self._free[piece.num_bytes]
        self._num_free -= 1
        self._num_free_bytes -= piece.num_bytes
        return piece

    def _made(self, needed: int, num_bytes: int) -> _Piece:
        if self._cap_bytes is not None and self._num_bytes + num_bytes > self._cap_bytes:
            self._forget(self._num_free)
            num_bytes = max(needed, min(num_bytes, self._cap_bytes - self._num_bytes))
            if self._num_bytes + num_bytes > self._cap_bytes:
                raise self.no_room()
        self.num_pieces += 1
        self._num_bytes += num_bytes
        return _Piece(allocate_bytes(num_bytes, pinned=self._pinned))

    def _give_back(self, piece: _Piece, busy: tuple[Done, ...]) -> None:
        """Called by finalizers: see `_Owner`."""
        # No other code has the piece: its only owner ends here. Two threads may both see room below; then one piece too
        # many is kept until `_tidy` counts.
        piece.busy = busy
        if busy or len(self._returned) < self.capacity:  # a copy may still read busy memory: keep it
            self._returned.append(piece)
        else:
            self._forgotten.append(piece.num_bytes)

    def _tidy(self) -> None:
        while self._returned:
            piece = self._returned.popleft()
            self._turn += 1
            piece.turn = self._turn
            self._free.setdefault(piece.num_bytes, deque()).append(piece)
            self._num_free += 1
            self._num_free_bytes += piece.num_bytes
        if self._num_free > self.capacity:
            self._forget(self._num_free - self.capacity)
        while self._forgotten:
            self._num_bytes -= self._forgotten.popleft()

    def _forget(self, count: int) -> None:
        """Free so many pieces, the least recently used first."""
        for _ in range(count):
            alike = min(self._free.values(), key=lambda pieces: pieces[0].turn)
            for done in alike[0].busy:
                done.synchronize()  # still in the list, so that a Ctrl-C loses nothing
            self._num_bytes -= self._off_the_list(alike.popleft()).num_bytes
