"""Row pointers of CSR matrices: kept in pages, checked by chunks, looked up by row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from rankwise._process.forks import renew_in_children
from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.store import ArrayMeta, BoxError, BoxReader, BoxReport, BoxRequest
from rankwise.errors import DataError

Ask: TypeAlias = Callable[[int], int | None]


class PointerCheck:
    """Checks row pointers: they never decrease, start at 0, and end with the number of elements.

    A chunk that is not in a store is read as zeros. Zeros are correct only if all rows up to the end of the chunk are
    empty: before the first chunk with other numbers, whose first number is then at most the elements of one row.

    Args:
        num_rows: rows of the matrix; there is one pointer more.
        num_elements: elements of the matrix.
        num_cols: most elements of a row; None = unknown.
    """

    def __init__(self, *, num_rows: int, num_elements: int, num_cols: int | None) -> None:
        self._num_rows, self._num_elements, self._num_cols = num_rows, num_elements, num_cols
        self._first_filled: tuple[int, int] | None = None  # start of the first nonzero chunk, its first number

    def is_sound(self, page: IntArray, first: int, chunk: int) -> bool:
        """Quick check: whether no error is found in a page, int64[n], of whole chunks; the last one may be shorter."""
        # chunks of zeros come before all others
        return not self._wrong(page, first) and not (self._num_elements and _is_blank(page[:chunk]) and chunk > 1)

    def problems(self, page: IntArray, first: int, chunk: int, unread: Container[int], ask: Ask) -> dict[int, str]:
        """Return the errors, by the number of the chunk. If two chunks do not fit, both count as damaged.

        Chunks in `unread` have undefined numbers. `ask` returns the number at a place, None if it cannot be read.
        """
        found: dict[int, str] = {}
        last: list[tuple[int, int]] = []  # of chunks that seem sound: number of the chunk, its last number
        for start in range(0, len(page), chunk):
            part, place = page[start : start + chunk], first + start
            number = place // chunk
            if number in unread:
                continue
            what = self._wrong(part, place)
            if not what and self._num_elements and _is_blank(part) and self._is_lost(place, chunk, ask):
                what = f"row {place} and those after it would be empty"
            if what:
                found[number] = what
            elif last and part[0] < last[-1][1]:
                before, _ = last.pop()
                found[before] = found[number] = f"row {place - 1} would begin after it ends"
            else:
                last.append((number, int(part[-1])))
        return found

    def _wrong(self, numbers: IntArray, first: int) -> str:
        falls = np.flatnonzero(np.diff(numbers) < 0)
        last = first + len(numbers) - 1
        if len(falls):
            return f"row {first + int(falls[0])} would begin after it ends"
        if numbers[0] < 0 or (first == 0 and numbers[0] != 0):
            return f"row {first} would begin at element {numbers[0]}"
        if numbers[-1] > self._num_elements or (last == self._num_rows and numbers[-1] != self._num_elements):
            return f"row {max(0, last - 1)} would end at element {numbers[-1]} of {self._num_elements}"
        return ""

    def _is_lost(self, place: int, chunk: int, ask: Ask) -> bool:
        """Whether zeros from a place on come from a missing chunk."""
        if self._first_filled is None:
            starts = range(0, self._num_rows + 1, chunk)
            found = next((start for start in starts if ask(min(start + chunk - 1, self._num_rows))), -1)
            self._first_filled = (found, (ask(found) or 0) if found >= 0 else 0)
        filled, number = self._first_filled
        return place > filled or (self._num_cols is not None and number > self._num_cols)


def _is_blank(numbers: IntArray) -> bool:
    return not numbers[-1] and not numbers[0]


def read_boxes(array: ArrayMeta, starts: IntArray, extent: int, reader: BoxReader) -> tuple[IntArray, BoxReport]:
    """Read ranges of equal length, int64[n, extent], and return the report; bypasses all caches.

    Raises:
        DataError: the storage fails; damage is reported, not raised.
    """
    request = BoxRequest(
        arrays=(array,),
        which=np.zeros(len(starts), dtype=np.int64),
        starts=starts[:, None],
        shape=(extent,),
        dtype=np.dtype(np.int64),
        keep=False,
    )
    values: IntArray = np.empty((len(starts), extent), dtype=np.int64)
    (report,) = reader.read([(reader.plan(request), values)])
    for error in report.errors:
        if not error.damage:
            raise error.error
    return values, report


_LEAST_PAGE = 2**13  # numbers; shorter chunks are read several at a time
_RUN_BITS = 4  # a run of 16 numbers is stored as offsets from its smallest number
_RUN = 1 << _RUN_BITS
_MOST_AT_ONCE_BYTES = 2**23  # of pages as read, before they are compressed
_OFFSET_DTYPES: tuple[DType, ...] = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.int64))


class PagedNumbers:
    """Numbers of a one-dimensional array, looked up by place; thread-safe.

    A page is several chunks of the array, each decoded once when the page is read. All pages lie in one table, so
    looking up the places of a batch is one gather, however many pages they are on. The most recently used pages are
    kept. If a page has an error, each of its chunks is checked alone: the others stay valid.

    Args:
        array: the array, one axis, integers.
        reader: reads it; these reads bypass its cache.
        check: finds invalid numbers; None = all are valid.
        what: what the numbers are, for messages.
        capacity_bytes: size of the table.
    """

    def __init__(
        self, array: ArrayMeta, reader: BoxReader, check: PointerCheck | None, *, what: str, capacity_bytes: int
    ) -> None:
        self._array = array
        self._reader = reader
        self._check = check
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
        """Drop all pages; for processes that are forked while threads run."""
        # One lock for all tables, also held while pages are read: another thread could replace slots before this one
        # gathers from them. The reader's locks are always taken inside it; the reader never calls back here.
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
        """Bytes of the full table."""
        return self._bases.nbytes + self._offsets.nbytes

    def take(self, places: IntArray) -> tuple[IntArray, dict[int, BoxError]]:
        """Return the numbers at places, int64[n], and errors for those that have none, by their index in `places`."""
        page, found = places // self._page, np.empty(len(places), dtype=np.int64)
        touched = np.zeros(self._num_pages, dtype=np.bool_)
        touched[page] = True
        numbers = np.flatnonzero(touched)
        with self._lock:
            for low in range(0, len(numbers), self._most):
                part = numbers[low : low + self._most]
                self._hold(part)
                members = slice(None) if len(part) == len(numbers) else (page >= part[0]) & (page <= part[-1])
                slot, inside = self._slot[page[members]], places[members] - page[members] * self._page
                found[members] = self._bases[slot, inside >> _RUN_BITS] + self._offsets[slot, inside]
            if not self._damaged:
                return found, {}
            chunks = places // self.chunk
            hit = np.flatnonzero(np.isin(chunks, list(self._damaged))).tolist()
            return found, {index: replace(self._damaged[int(chunks[index])], box=index) for index in hit}

    def mark_damaged(self, place: int, why: str) -> None:
        """Mark the chunk of a place as damaged."""
        with self._lock:  # found when numbers of two arrays are compared, not by the thread that reads a page
            self._damaged.setdefault(place // self.chunk, self._error(place // self.chunk, why))

    def _error(self, chunk: int, why: str) -> BoxError:
        place = self._array.place
        what = f"the {self._what} {place} are damaged: in chunk ({chunk},) {why}; copy or write the matrix again"
        return BoxError(box=0, place=f"chunk ({chunk},) of the array {place}", error=DataError(what))

    def _hold(self, numbers: IntArray) -> None:
        """Load these pages, at most as many as there are slots."""
        self._clock += 1
        slots = self._slot[numbers]
        self._used[slots[slots >= 0]] = self._clock
        absent = numbers[slots < 0]
        step = max(1, _MOST_AT_ONCE_BYTES // (8 * self._page))
        for low in range(0, len(absent), step):
            part = absent[low : low + step]
            # the last page may be shorter
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
            if not valid or not (self._check is None or self._check.is_sound(page, number, self.chunk)):
                self._look_closer(page, number)
        return values

    def _look_closer(self, page: IntArray, first: int) -> None:
        """Find the damaged chunks of a page. Fill them with neighbouring numbers, so that the page compresses well."""
        unread: dict[int, BoxError] = {}
        for start in range(0, len(page), self.chunk):
            part = page[start : start + self.chunk]
            values, report = read_boxes(self._array, np.array([first + start]), len(part), self._reader)
            part[:] = values[0]
            if report.errors:
                unread[(first + start) // self.chunk] = report.errors[0]
        check = self._check
        wrong = {} if check is None else check.problems(page, first, self.chunk, unread, self._ask)
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
        most = int(offsets.max())  # runs of 16 rows with 65,536 or more elements are rare
        wanted = next(dtype for dtype in _OFFSET_DTYPES if most <= np.iinfo(dtype).max)
        if wanted.itemsize > self._offsets.dtype.itemsize:
            self._offsets = self._offsets.astype(wanted)
        self._bases[slots], self._offsets[slots] = bases, offsets
        # Pages are found by `_slot`, so it is set last. After a Ctrl-C before that, a page is read again; in the other
        # order a page could be overwritten unnoticed.
        self._held[slots], self._used[slots] = numbers, self._clock
        self._slot[numbers] = slots
        self.num_pages_read += len(numbers)


_CAPACITY_BYTES = 128 * 2**20


class RowPointers:
    """Row i of a CSR matrix has elements ``begin[i]`` to ``begin[i + 1]``, or fewer if lengths are given.

    Thread-safe.

    Pages are read on first use, and the most recently used ones are kept, up to 128 MiB: enough for 50 million rows,
    or for all rows that a window order mixes at a time.

    Args:
        array: the `indptr` of the matrix, [num_rows + 1], of any integer dtype.
        num_elements: how many elements the matrix stores.
        reader: reads it.
        lengths: the `row_nnz` beside it, [num_rows], if rows end in explicit zeros that only pad a chunk; None =
            rows have no such zeros.
        num_cols: columns of the matrix, the most elements of a row; None = unknown.
        capacity_bytes: limit for pages in memory.
    """

    def __init__(
        self,
        array: ArrayMeta,
        num_elements: int,
        reader: BoxReader,
        *,
        lengths: ArrayMeta | None = None,
        num_cols: int | None = None,
        capacity_bytes: int = _CAPACITY_BYTES,
    ) -> None:
        if array.ndim != 1 or array.shape[0] < 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{array.place} must be the row pointers of a CSR matrix, integers along one axis; it is "
                f"{array.dtype}{list(array.shape)}"
            )
        if lengths is not None and (lengths.shape != (array.shape[0] - 1,) or lengths.dtype.kind not in "iu"):
            raise DataError(
                f"{lengths.place} must be the lengths of {array.shape[0] - 1} rows, integers along one axis; "
                f"it is {lengths.dtype}{list(lengths.shape)}: write the matrix again"
            )
        self.array = array
        self.lengths = lengths
        self.num_rows = array.shape[0] - 1
        # Chunks with a nonzero length. The set only grows, so it needs no lock: at worst a chunk is checked twice.
        self._filled: set[int] = set()
        each = capacity_bytes if lengths is None else capacity_bytes // 2
        check = PointerCheck(num_rows=self.num_rows, num_elements=num_elements, num_cols=num_cols)
        self._begins = PagedNumbers(array, reader, check, what="row pointers", capacity_bytes=each)
        self._lengths = (
            None if lengths is None else PagedNumbers(lengths, reader, None, what="row lengths", capacity_bytes=each)
        )

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray, tuple[BoxError, ...]]:
        """Return start and number of elements of rows, int64[n] twice, and errors of rows for which they are unknown.

        Such rows have no elements here. They are the rows of damaged chunks: if a chunk cannot be decoded, or has an
        invalid number, all its numbers are rejected.

        Raises:
            DataError: the storage fails.
        """
        edges, errors = self._begins.take(np.concatenate([rows, rows + 1]))
        lost = {index % len(rows): errors[index] for index in errors} if errors else {}
        begin, held = edges[: len(rows)], edges[len(rows) :] - edges[: len(rows)]
        falls = set(np.flatnonzero(held < 0).tolist()) - lost.keys()
        if falls:  # rows that begin on one page and end on the next: either page may be damaged
            for row in rows[sorted(falls)].tolist():
                for place in (row, row + 1):
                    self._begins.mark_damaged(place, f"row {row} would begin after it ends")
            return self.spans(rows)
        lengths = held if self._lengths is None else self._true_lengths(self._lengths, rows, held, lost)
        if not lost:
            return begin, lengths, ()
        gone = sorted(lost)
        begin[gone] = lengths[gone] = 0
        return begin, lengths, tuple(replace(lost[index], box=index) for index in gone)

    def _true_lengths(
        self, numbers: PagedNumbers, rows: IntArray, held: IntArray, lost: dict[int, BoxError]
    ) -> IntArray:
        """Return lengths without the zeros that pad chunks; add their errors to `lost`."""
        lengths, errors = numbers.take(rows)
        for index, error in errors.items():
            lost.setdefault(index, error)
        odd, blank = np.flatnonzero((lengths < 0) | (lengths > held)), np.flatnonzero((lengths == 0) & (held > 0))
        if not len(odd) and not len(blank):
            return lengths
        wrong = {
            index: f"row {rows[index]} would have {lengths[index]} elements of {held[index]}"
            for index in odd.tolist()
            if index not in lost
        }
        wrong = wrong or self._blank_ones(numbers, rows, blank, lost)
        if not wrong:
            return lengths
        for index, why in wrong.items():
            numbers.mark_damaged(int(rows[index]), why)
        return self._true_lengths(numbers, rows, held, lost)

    def _blank_ones(
        self, numbers: PagedNumbers, rows: IntArray, indices: IntArray, lost: Mapping[int, BoxError]
    ) -> dict[int, str]:
        """Return errors of rows with length 0 that have room for elements, if all lengths of their chunk are 0.

        A chunk that is not in the store reads like this.
        """
        found = {}
        for index in indices.tolist():
            chunk = int(rows[index]) // numbers.chunk
            if index in lost or chunk in self._filled:
                continue
            start = chunk * numbers.chunk
            lengths, _ = numbers.take(np.arange(start, min(start + numbers.chunk, self.num_rows)))
            if lengths.any():
                self._filled.add(chunk)
            else:
                found[index] = f"row {start} and those after it would be empty"
        return found
