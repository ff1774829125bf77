"""`MemoryPool`: memory of load requests, used again once nobody looks at it any more."""

from __future__ import annotations

import sys

import numpy as np

from rankwise.data.contract import DType, NDArray

__all__ = ["MemoryPool"]

_ALIGNMENT = 64  # a line of the caches: what shares one with its neighbours is read before it is written
_WASTE, _LITTLE = 2.25, 4096
_PAGE_BYTES = 4096
_SLACK = 1.125  # the rows of the next request hold a few elements more or less


class MemoryPool:
    """Hands out arrays; memory whose arrays, views of them included, are all gone is handed out again.

    Fresh memory costs a page fault for every 4 KiB, which for sparse rows is as much as half of decoding them. A batch
    that is kept keeps its memory: the pool then takes new memory, and forgets the one that was kept. Memory of far more
    than is needed is left to others: the short request at the end of a pass has its own.

    Args:
        capacity: pieces of memory that are remembered.
    """

    def __init__(self, capacity: int = 6) -> None:
        self._capacity = capacity
        self._pieces: list[NDArray] = []
        self._alone = _references([np.empty(1)], 0)
        self.num_pieces = 0

    def take(self, count: int, dtype: DType) -> NDArray:
        """Return an array [count] of undefined content, at an address that is a multiple of 64."""
        needed = count * dtype.itemsize
        for place in range(len(self._pieces)):  # no name for the piece: it would be a reference
            suits = needed + _ALIGNMENT <= self._pieces[place].nbytes <= _WASTE * needed + _LITTLE
            if suits and _references(self._pieces, place) <= self._alone:
                self._pieces.append(self._pieces.pop(place))
                return _aligned(self._pieces[-1], needed).view(dtype)
        self._pieces.append(np.empty(int(needed * _SLACK) + _ALIGNMENT, dtype=np.uint8))
        self.num_pieces += 1
        del self._pieces[: -self._capacity]
        made = _aligned(self._pieces[-1], needed)
        # Whoever writes here and there only would else meet fresh pages for many requests to come
        made[::_PAGE_BYTES] = 0
        return made.view(dtype)


def _references(pieces: list[NDArray], place: int) -> int:
    return sys.getrefcount(pieces[place])


def _aligned(piece: NDArray, num_bytes: int) -> NDArray:
    first = -piece.ctypes.data % _ALIGNMENT
    return piece[first : first + num_bytes]
