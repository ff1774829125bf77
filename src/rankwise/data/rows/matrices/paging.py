"""`PagedNumbers`: a long array of whole numbers, of which pages are in memory in about 2.5 bytes a number."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.matrices.chunkwise import read_boxes, read_chunks
from rankwise.data.rows.matrices.judging import Judge
from rankwise.data.store import ArrayMeta, BoxError, BoxReader
from rankwise.data.store.forks import renew_in_children
from rankwise.errors import DataError

__all__ = ["PagedNumbers"]

_LEAST_PAGE = 2**13  # numbers; shorter chunks are taken several at a time
_RUN_BITS = 4  # numbers of a run of 16 are kept as what they are above its least
_RUN = 1 << _RUN_BITS
_MOST_AT_ONCE_BYTES = 2**23  # of pages as they are read, before they are packed
_OFFSET_DTYPES: tuple[DType, ...] = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.int64))


class PagedNumbers:
    """Numbers of an array along one axis, by place; thread-safe.

    A page is as many chunks of the array as it takes: each is decoded once when the page is read. All pages lie in one
    table, so that looking up the places of a batch is one gather however many pages they lie on. The ones used last
    are kept. Of a page in which something is wrong every chunk is looked at by itself: the others stay good.

    Args:
        array: the array, one axis, whole numbers.
        reader: reads it; what it decodes here goes into no cache.
        judge: says which numbers cannot be.
        what: what the numbers are, for messages.
        capacity_bytes: size of the table.
    """

    def __init__(self, array: ArrayMeta, reader: BoxReader, judge: Judge, *, what: str, capacity_bytes: int) -> None:
        self._array = array
        self._reader = reader
        self._judge = judge
        self._what = what
        self.chunk = max(1, min(array.chunks[0], array.shape[0]))
        self._page = -(-_LEAST_PAGE // self.chunk) * self.chunk
        self._num_pages = -(-array.shape[0] // self._page)
        self._runs = -(-self._page // _RUN)
        self._most = max(1, min(self._num_pages, capacity_bytes // (self._runs * (8 + _RUN * 2))))
        self.renew()
        renew_in_children(self)

    def __getstate__(self) -> dict[str, object]:
        own = ("_lock", "_slot", "_held", "_used", "_bases", "_offsets", "_damaged")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Hold nothing; for processes that are forked while threads are at work."""
        self._lock = threading.Lock()
        self._slot = np.full(self._num_pages, -1, dtype=np.int64)  # of each page, -1 = not in memory
        self._held = np.full(self._most, -1, dtype=np.int64)  # the page in each slot
        self._used = np.zeros(self._most, dtype=np.int64)  # when each slot was used last
        self._bases = np.empty((self._most, self._runs), dtype=np.int64)
        self._offsets: NDArray = np.empty((self._most, self._runs * _RUN), dtype=_OFFSET_DTYPES[0])
        self._damaged: dict[int, BoxError] = {}  # by the number of the chunk
        self._clock = 0
        self.num_pages_read = 0

    @property
    def capacity_bytes(self) -> int:
        """Memory that the table takes once all of it is in use."""
        return self._bases.nbytes + self._offsets.nbytes

    def take(self, places: IntArray) -> tuple[IntArray, dict[int, BoxError]]:
        """Return the numbers at places, int64[n], and why some of them are none, by their index in `places`.

        Raises:
            DataError: there is trouble with the storage.
        """
        page, found = places // self._page, np.empty(len(places), dtype=np.int64)
        touched = np.zeros(self._num_pages, dtype=np.bool_)
        touched[page] = True
        numbers = np.flatnonzero(touched)
        with self._lock:
            if len(numbers) <= self._most:
                self._hold(numbers)
                return self._gather(page, places), self._errors(places)
            for low in range(0, len(numbers), self._most):
                part = numbers[low : low + self._most]
                self._hold(part)
                members = (page >= part[0]) & (page <= part[-1])
                found[members] = self._gather(page[members], places[members])
            return found, self._errors(places)

    def distrust(self, place: int, why: str) -> None:
        """Count the chunk of a place among the damaged ones.

        Args:
            place: in the array.
            why: what is wrong there.
        """
        with self._lock:
            self._damaged.setdefault(place // self.chunk, self._error(place // self.chunk, why))

    def _errors(self, places: IntArray) -> dict[int, BoxError]:
        if not self._damaged:
            return {}
        chunks = places // self.chunk
        hit = np.flatnonzero(np.isin(chunks, list(self._damaged))).tolist()
        return {index: replace(self._damaged[int(chunks[index])], box=index) for index in hit}

    def _error(self, chunk: int, why: str) -> BoxError:
        place = self._array.place
        what = f"the {self._what} {place} are damaged: in chunk ({chunk},) {why}; copy or write the matrix again"
        return BoxError(box=0, place=f"chunk ({chunk},) of the array {place}", error=DataError(what))

    def _gather(self, page: IntArray, places: IntArray) -> IntArray:
        slot, inside = self._slot[page], places - page * self._page
        numbers: IntArray = self._bases[slot, inside >> _RUN_BITS]
        numbers += self._offsets[slot, inside]
        return numbers

    def _hold(self, numbers: IntArray) -> None:
        """Have these pages in memory, at most as many as there are slots."""
        self._clock += 1
        slots = self._slot[numbers]
        self._used[slots[slots >= 0]] = self._clock
        absent = numbers[slots < 0]
        step = max(1, _MOST_AT_ONCE_BYTES // (8 * self._page))
        for low in range(0, len(absent), step):
            part = absent[low : low + step]
            # the last page is a shorter one
            whole = part[(part + 1) * self._page <= self._array.shape[0]]
            for group in (whole, part[len(whole) :]):
                if len(group):
                    self._keep(group, self._read(group))

    def _read(self, numbers: IntArray) -> IntArray:
        """Read pages of equal length, int64[pages, numbers]."""
        starts = (numbers * self._page)[:, None]
        extent = min(self._page, self._array.shape[0] - int(starts[-1, 0]))
        values, report = read_boxes(self._array, starts[:, 0], extent, self._reader)
        for number, page, valid in zip(starts[:, 0].tolist(), values, report.valid.tolist(), strict=True):
            if not valid or not self._judge.is_sound(page, number, self.chunk):
                self._look_closer(page, number)
        return values

    def _look_closer(self, page: IntArray, first: int) -> None:
        """Find the damaged chunks of a page. Their places get a number beside them, which is as good as any."""
        unread = read_chunks(self._array, page, first, self.chunk, self._reader)
        wrong = self._judge.problems(page, first, self.chunk, unread, self._ask)
        found = {**unread, **{chunk: self._error(chunk, why) for chunk, why in wrong.items()}}
        self._damaged.update(found)
        bad = np.isin((first + np.arange(len(page))) // self.chunk, list(found))
        sound = np.flatnonzero(~bad)
        if len(sound):
            page[bad] = page[sound[np.searchsorted(sound, np.flatnonzero(bad)).clip(max=len(sound) - 1)]]
        else:
            page[:] = 0

    def _ask(self, place: int) -> int | None:
        values, report = read_boxes(self._array, np.array([place]), 1, self._reader)
        return int(values[0, 0]) if report.valid[0] else None

    def _keep(self, numbers: IntArray, values: IntArray) -> None:
        slots = np.argsort(self._used, kind="stable")[: len(numbers)]
        self._slot[self._held[slots][self._held[slots] >= 0]] = -1
        padded = np.pad(values, ((0, 0), (0, self._runs * _RUN - values.shape[1])), mode="edge")
        runs = padded.reshape(len(numbers), self._runs, _RUN)
        bases = runs.min(axis=2)
        offsets = (runs - bases[:, :, None]).reshape(len(numbers), -1)
        self._widen(int(offsets.max()))
        self._bases[slots], self._offsets[slots] = bases, offsets
        self._slot[numbers], self._held[slots], self._used[slots] = slots, numbers, self._clock
        self.num_pages_read += len(numbers)

    def _widen(self, most: int) -> None:
        """Make room for offsets up to `most`: runs of 16 rows with 65,536 elements and more are seldom."""
        wanted = next(dtype for dtype in _OFFSET_DTYPES if most <= np.iinfo(dtype).max)
        if wanted.itemsize > self._offsets.dtype.itemsize:
            self._offsets = self._offsets.astype(wanted)
