"""Which chunks of a plan are in the cache, and which to keep after decoding."""

from __future__ import annotations

import itertools
import math

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.store.decode.tasks import address_of
from rankwise.data.store.plan import BoxPlan
from rankwise.data.store.reading.admission import used_up
from rankwise.data.store.reading.slabs import chunk_keys
from rankwise.data.store.reading.tools import Tools

__all__ = ["Keeping"]


class Keeping:
    """Takes chunks of a plan from the cache, and adds chunks to it.

    Args:
        plan: the plan.
        chosen: int64[n], which of its chunks, ascending.
        tools: has the cache.

    Attributes:
        decoded: int64[n], addresses of chunks that are already decoded, else 0.
        num_found: number of such chunks.
    """

    def __init__(self, plan: BoxPlan, chosen: IntArray, tools: Tools) -> None:
        self._plan, self._chosen, self._tools = plan, chosen, tools
        self._held: list[NDArray] = []  # keeps the arrays that were found alive
        self._keys: dict[int, int] = {}  # position -> key, for chunks to keep
        self.decoded = np.zeros(len(chosen), dtype=np.int64)
        self._array: IntArray = plan.chunks.array[chosen]
        if tools.cache.capacity_bytes and plan.request.keep:
            self._look()

    @property
    def num_found(self) -> int:
        """Number of chunks that are already decoded."""
        return len(self._held)

    def buffers(self, first: int, last: int, keep: IntArray) -> dict[int, NDArray]:
        """Return memory for the chunks to keep, by position, and write its addresses to `keep`.

        Called late, so that only slabs at work hold memory.
        """
        if not self._keys:
            return {}
        arrays, made = self._plan.request.arrays, dict[int, NDArray]()
        for at in range(first, last):
            if at in self._keys:
                meta = arrays[int(self._array[at])]
                made[at] = np.empty(meta.chunks, dtype=meta.dtype)
                keep[at] = address_of(made[at])
        return made

    def put(self, at: int, values: NDArray) -> None:
        """Keep a chunk."""
        self._tools.cache.put(self._keys[at], values)

    def _look(self) -> None:
        """Query the cache, and decide which of the other chunks to keep."""
        cache, admission, chunks = self._tools.cache, self._tools.admission, self._plan.chunks
        there, numbers = chunks.offset[self._chosen] >= 0, chunks.number[self._chosen]
        serials = {
            which: self._tools.serial(self._plan.request.arrays[which]) for which in np.unique(self._array).tolist()
        }
        room, spent = cache.capacity_bytes, self._spent(serials)
        for which, serial in serials.items():
            size = self._plan.request.arrays[which].chunk_bytes
            places = np.flatnonzero(there & (self._array == which))
            keys = chunk_keys(serial, numbers[places])
            absent = np.array(self._found(places, cache.peek(keys)), dtype=np.int64)
            admission.found(len(keys) - len(absent))
            room -= size * (len(keys) - len(absent))
            if spent is not None:
                absent = absent[~spent[places[absent]]]
            wanted = admission.wants([keys[k] for k in absent.tolist()], size)
            most = max(0, room // max(1, size))  # more would only evict chunks that are used here
            kept = list(itertools.islice(itertools.compress(absent.tolist(), wanted), most))
            self._keys.update((int(places[k]), keys[k]) for k in kept)
            room -= size * len(kept)

    def _found(self, places: IntArray, kept: list[NDArray | None]) -> list[int]:
        """Record the addresses of decoded chunks; return the positions that were not found."""
        absent = []
        for k, array in enumerate(kept):
            if array is None:
                absent.append(k)
            else:
                self._held.append(array)
                self.decoded[places[k]] = address_of(array)
        return absent

    def _spent(self, serials: dict[int, int]) -> BoolArray | None:
        """Return which chunks are not worth keeping, because almost all of them is used; None = there are none."""
        metas = {serial: self._plan.request.arrays[which] for which, serial in serials.items()}
        sizes = {serial: math.prod(meta.shape) * meta.dtype.itemsize for serial, meta in metas.items()}
        return used_up(self._plan)[self._chosen] if self._tools.admission.outgrows(sizes) else None
