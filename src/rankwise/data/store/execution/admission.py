"""Which chunks of a plan are in the cache, and which to cache after decoding: those that are needed again."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.store.cache import ChunkCache
from rankwise.data.store.decode.tasks import address_of
from rankwise.data.store.execution.slabs import chunk_keys
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.plan import BoxPlan

__all__ = ["Admission", "PlanCache", "mostly_used"]

_WORTH = 0.15  # share of repeated touches above which every chunk is kept
_SMOOTHING = 1 / 512  # of the running mean over touches
_GHOSTS_PER_PLACE = 4
_FEWEST_GHOSTS = 1024


class Admission:
    """Decides whether to cache a chunk that is about to be decoded; thread-safe.

    Writing every decoded chunk to memory costs as much as casting it, and under a global shuffle hardly any chunk
    is needed again before it is evicted. So the keys of chunks that were not kept are remembered for a while: a chunk
    that returns is kept, and once enough of them return (a window order, overlapping crops) all are kept.

    Args:
        capacity_bytes: size of the cache.
        everything: keep every chunk at first use, for an order that is known to return soon.
    """

    def __init__(self, capacity_bytes: int, *, everything: bool = False) -> None:
        self._everything = everything
        self._capacity_bytes = capacity_bytes
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._met: dict[int, int] = {}
        # Guards all three and the share: together they record the touches, in some order of the threads.
        self._lock = threading.Lock()
        self.repeat_share = 0.0

    def wants(self, keys: Sequence[Hashable], num_bytes: int) -> list[bool]:
        """Return which of some chunks, each of `num_bytes`, to keep that were needed and not in the cache."""
        if num_bytes > self._capacity_bytes:
            return [False] * len(keys)
        limit = max(_FEWEST_GHOSTS, _GHOSTS_PER_PLACE * self._capacity_bytes // max(1, num_bytes))
        with self._lock:  # once for all chunks of an array: a plan has thousands
            answers = [self._wants(key) for key in keys]
            while len(self._ghosts) > limit:
                self._ghosts.popitem(last=False)
        return answers

    def outgrows(self, sizes: Mapping[int, int]) -> bool:
        """Whether the arrays seen so far exceed the cache; only if every chunk is kept at first use.

        An order that uses each row once returns to a used-up chunk only in the next epoch. By then it has been evicted,
        unless all arrays fit into the cache: keeping it has a cost and no benefit.

        Args:
            sizes: decoded bytes of the arrays of a request, by their numbers.
        """
        if not self._everything:
            return False
        with self._lock:
            self._met.update(sizes)
            return sum(self._met.values()) > self._capacity_bytes

    def found(self, num_chunks: int) -> None:
        """Record that chunks were needed and found in the cache."""
        with self._lock:
            for _ in range(num_chunks):
                self._touch(repeat=True)

    def forget(self) -> None:
        """Begin with nothing touched: arrays have other numbers from now on."""
        with self._lock:
            self._ghosts.clear()
            self._met.clear()

    def _wants(self, key: Hashable) -> bool:
        known = key in self._ghosts
        self._touch(repeat=known)
        if known or self._everything or self.repeat_share > _WORTH:
            self._ghosts.pop(key, None)
            return True
        self._ghosts[key] = None
        return False

    def _touch(self, *, repeat: bool) -> None:
        self.repeat_share += _SMOOTHING * (repeat - self.repeat_share)


_MOST = 7 / 8


def mostly_used(plan: BoxPlan) -> BoolArray:
    """Return for each chunk of a plan, bool[K], whether its targets use at least seven eighths of its elements.

    Not all, because chunks of sparse rows that end with a row have padding elements. Consecutive targets with equal
    starts are the same region requested several times, and count once. With other overlaps a chunk may wrongly seem to
    be used up. One at the edge of its array hardly ever does.
    """
    targets, sizes = plan.targets, np.array([math.prod(meta.chunks) for meta in plan.request.arrays], dtype=np.int64)
    taken: IntArray = targets.extent.prod(axis=1)
    again = np.zeros(len(taken), dtype=np.bool_)
    again[1:] = (targets.src_start[1:] == targets.src_start[:-1]).all(axis=1)
    again[targets.bounds[:-1][targets.bounds[:-1] < len(taken)]] = False  # the first target of another chunk
    taken[again] = 0
    ends = np.concatenate([[0], np.cumsum(taken)])
    whole: BoolArray = np.diff(ends[targets.bounds]) >= _MOST * sizes[plan.chunks.array]
    return whole


class PlanCache:
    """Takes chunks of a plan from the cache, and adds chunks to it.

    Args:
        plan: the plan.
        chosen: int64[n], which of its chunks, ascending.
        cache: decoded chunks.
        admission: decides which of them to keep.
        serial: returns a number that identifies an array.

    Attributes:
        decoded: int64[n], addresses of chunks that are already decoded, else 0.
        num_found: number of such chunks.
    """

    def __init__(
        self,
        plan: BoxPlan,
        chosen: IntArray,
        cache: ChunkCache,
        admission: Admission,
        serial: Callable[[ArrayMeta], int],
    ) -> None:
        self._plan, self._chosen, self._cache, self._admission = plan, chosen, cache, admission
        self._held: list[NDArray] = []  # keeps the arrays that were found alive
        self._keys: dict[int, int] = {}  # position -> key, for chunks to keep
        self.decoded = np.zeros(len(chosen), dtype=np.int64)
        self._array: IntArray = plan.chunks.array[chosen]
        if cache.capacity_bytes and plan.request.keep:
            self._look({which: serial(plan.request.arrays[which]) for which in np.unique(self._array).tolist()})

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
        self._cache.put(self._keys[at], values)

    def _look(self, serials: dict[int, int]) -> None:
        """Query the cache, and decide which of the other chunks to keep."""
        cache, admission, chunks = self._cache, self._admission, self._plan.chunks
        there, numbers = chunks.offset[self._chosen] >= 0, chunks.number[self._chosen]
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
        return mostly_used(self._plan)[self._chosen] if self._admission.outgrows(sizes) else None
