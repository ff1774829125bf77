"""An LRU cache of decoded chunks, limited in bytes; and which chunks plans find there and keep."""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import lru_cache
from numbers import Real

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import BoolArray, IntArray, NDArray
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.plan.planner import BoxPlan
from rankwise.errors import ConfigError

DEFAULT_CACHE_BYTES = 256 * 2**20


class ChunkCache:
    """An LRU cache of arrays, limited by their bytes; thread-safe.

    An array larger than the whole cache is not kept. Arrays become read-only, because several readers share them.
    One cache may serve several sources: its limit then applies to all of them together.

    Args:
        capacity_bytes: most bytes kept; 0 keeps nothing.

    Raises:
        ConfigError: `capacity_bytes` is negative.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if not (isinstance(capacity_bytes, Real) and float(capacity_bytes) >= 0):
            raise ConfigError(
                f"a chunk cache needs capacity_bytes >= 0 (0 = off), a number of bytes, got {capacity_bytes!r}"
            )
        self.capacity_bytes: int = capacity_bytes
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Drop everything; for processes that are forked while threads run."""
        # Guards entries and byte count; threads of all readers that share the cache take it.
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, NDArray] = OrderedDict()
        self._kept_bytes = 0

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[int]]:
        """Pickle as an empty cache of the same size."""
        return ChunkCache, (self.capacity_bytes,)

    @property
    def kept_bytes(self) -> int:
        """Bytes in use, never more than `capacity_bytes`."""
        return self._kept_bytes  # a single read needs no lock: the number is outdated once returned

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._kept

    def holds(self, keys: Sequence[Hashable]) -> list[bool]:
        """Return which of `keys` are in the cache now, without marking them as used."""
        with self._lock:
            return list(map(self._kept.__contains__, keys))

    def peek(self, keys: Sequence[Hashable]) -> list[NDArray | None]:
        """Return the arrays of `keys` in the cache, None for the others."""
        with self._lock:
            # Other threads may evict these at once, while decoders still read from their addresses: the caller must
            # hold a returned array until its chunks are placed.
            held = list(map(self._kept.get, keys))
            for key, array in zip(keys, held, strict=True):
                if array is not None:
                    self._kept.move_to_end(key)
            return held

    def put(self, key: Hashable, array: NDArray) -> None:
        """Keep an array, which becomes read-only; replaces the entry of `key`."""
        array.flags.writeable = False  # before other threads can find it
        with self._lock:
            # Two threads may decode the same chunk. The second replaces the first; readers of the first keep it alive.
            old = self._kept.pop(key, None)
            self._kept_bytes -= 0 if old is None else old.nbytes
            if array.nbytes > self.capacity_bytes:
                return
            self._kept[key] = array
            self._kept_bytes += array.nbytes
            while self._kept_bytes > self.capacity_bytes:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.nbytes


_WORTH = 0.15  # share of repeated touches above which every chunk is kept
_SMOOTHING = 1 / 512  # of the running mean over touches
_GHOSTS_PER_PLACE = 4
_FEWEST_GHOSTS = 1024
_MOST_ARRAYS = 2**17
_numbers = itertools.count()  # never reused, so an old cache entry is never taken for a new array


class PlanCache:
    """Finds chunks in the cache, and decides which of the others to keep; thread-safe.

    Writing every decoded chunk to memory costs as much as casting it, and under a global shuffle hardly any chunk
    is needed again before it is evicted. So the keys of chunks that were not kept are remembered for a while: a chunk
    that returns is kept, and once enough of them return (a window order, overlapping crops) all are kept.

    Args:
        cache: decoded chunks.
        everything: keep every chunk at first use, for an order that is known to return soon.
    """

    def __init__(self, cache: ChunkCache, *, everything: bool = False) -> None:
        self.cache = cache
        self._serial = lru_cache(_MOST_ARRAYS)(lambda _place, _fingerprint: next(_numbers))
        self._everything = everything
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._met: dict[int, int] = {}  # decoded bytes of arrays, by their numbers
        self._repeat_share = 0.0
        # Guards these three: together they record the touches, in some order of the threads.
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Begin with nothing touched. Arrays have other numbers: chunks of files replaced meanwhile are not found."""
        self._serial.cache_clear()
        with self._lock:
            self._ghosts.clear()
            self._met.clear()

    def serial(self, array: ArrayMeta) -> int:
        """Return the number of an array; equal for equal places and metadata while it is remembered."""
        with self._lock:  # else threads that ask together for a new array get two numbers, and it counts twice
            return self._serial(array.place, array.fingerprint)

    def keys(self, array: ArrayMeta, numbers: IntArray) -> list[int]:
        """Return keys for chunks of an array: integers, because the garbage collector would visit tuples repeatedly."""
        return list(map((self.serial(array) << 64).__or__, numbers.tolist()))

    def needed(self, plan: BoxPlan) -> BoolArray:
        """Return which chunks of a plan would now have to be read and decoded, bool[K]."""
        chunks = plan.chunks
        needed: BoolArray = chunks.offset >= 0
        for which in np.unique(chunks.array).tolist() if len(self.cache) else ():
            places = np.flatnonzero(chunks.array == which)
            keys = self.keys(plan.request.arrays[which], chunks.number[places])
            needed[places[self.cache.holds(keys)]] = False
        return needed

    def lookup(self, plan: BoxPlan, chosen: IntArray) -> tuple[dict[int, NDArray], dict[int, int]]:
        """Query the cache for chunks of a plan, and decide which of the others to keep.

        Args:
            plan: the plan.
            chosen: int64[n], which of its chunks.

        Returns:
            By position in `chosen`: the chunks in the cache, which the caller must hold while it uses their addresses;
            and the keys of those to keep.
        """
        held, kept = dict[int, NDArray](), dict[int, int]()
        if not (self.cache.capacity_bytes and plan.request.keep):
            return held, kept
        arrays, array = plan.request.arrays, plan.chunks.array[chosen]
        there, numbers = plan.chunks.offset[chosen] >= 0, plan.chunks.number[chosen]
        used = np.unique(array).tolist()
        spent = [False] * len(chosen)  # not worth keeping, because almost all of the chunk is used
        if self._everything and self._outgrown([arrays[which] for which in used]):
            spent = mostly_used(plan)[chosen].tolist()
        room = self.cache.capacity_bytes
        for which in used:
            size, places = arrays[which].chunk_bytes, np.flatnonzero(there & (array == which))
            keys = self.keys(arrays[which], numbers[places])
            num_held, absent, is_slow = len(held), dict[int, int](), arrays[which].codec.kind == "zarr"
            for at, key, values in zip(places.tolist(), keys, self.cache.peek(keys), strict=True):
                if values is not None:
                    held[at] = values
                elif is_slow or not spent[at]:
                    absent[at] = key
            num_found = len(held) - num_held
            room -= size * num_found
            wanted = [True] * len(absent)  # slow to decode: keep each at first use
            if not is_slow:
                wanted = self.wants(list(absent.values()), size, num_found=num_found)
            for (at, key), is_wanted in zip(absent.items(), wanted, strict=True):
                if is_wanted and room >= size:  # more would only evict chunks that are used here
                    kept[at] = key
                    room -= size
        return held, kept

    def wants(self, keys: Sequence[Hashable], num_bytes: int, *, num_found: int = 0) -> list[bool]:
        """Return which of some chunks, each of `num_bytes`, to keep that were needed and not in the cache.

        `num_found` others were needed with them, and found.
        """
        if num_bytes > self.cache.capacity_bytes:
            return [False] * len(keys)
        limit = max(_FEWEST_GHOSTS, _GHOSTS_PER_PLACE * self.cache.capacity_bytes // max(1, num_bytes))
        answers: list[bool] = []
        with self._lock:  # once for all chunks of an array: a plan has thousands
            share = 1 - (1 - self._repeat_share) * (1 - _SMOOTHING) ** num_found
            for key in keys:
                known = key in self._ghosts
                share += _SMOOTHING * (known - share)
                answers.append(known or self._everything or share > _WORTH)
                if not answers[-1]:
                    self._ghosts[key] = None
                elif known:
                    del self._ghosts[key]
            self._repeat_share = share
            while len(self._ghosts) > limit:
                self._ghosts.popitem(last=False)
        return answers

    def _outgrown(self, arrays: Sequence[ArrayMeta]) -> bool:
        """Whether the arrays seen so far, these included, exceed the cache.

        An order that uses each row once returns to a used-up chunk only in the next epoch. By then it has been evicted,
        unless all arrays fit into the cache: keeping it has a cost and no benefit.
        """
        sizes = {self.serial(array): math.prod(array.shape) * array.dtype.itemsize for array in arrays}
        with self._lock:
            self._met.update(sizes)
            return sum(self._met.values()) > self.cache.capacity_bytes


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
    return np.diff(ends[targets.bounds]) >= _MOST * sizes[plan.chunks.array]
