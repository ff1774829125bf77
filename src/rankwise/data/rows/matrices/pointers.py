"""`RowPointers`: where the rows of a CSR matrix begin, in pages, so that 10^8 rows need no memory of their own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TypeAlias

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store import ArrayMeta, BoxReader, BoxRequest
from rankwise.errors import DataError

__all__ = ["RowPointers"]

_Page: TypeAlias = tuple[IntArray, IntArray | None]

_PAGE_ROWS = 2**16  # 512 KiB; a batch out of a window touches few of them
_CAPACITY_BYTES = 64 * 2**20


class RowPointers:
    """Row i of a CSR matrix holds elements from ``begin[i]`` on: up to ``begin[i + 1]``, or fewer if lengths are given.

    Thread-safe.

    Pages are read when they are first needed and the ones used last are kept, up to 64 MiB: those of 8 million rows.

    Args:
        array: the `indptr` of the matrix, [num_rows + 1], of any integer dtype.
        num_elements: how many elements the matrix stores.
        reader: reads it.
        lengths: the `row_nnz` beside it, [num_rows], where rows end in explicit zeros that only fill a chunk; None =
            rows are all that their pointers hold.
        capacity_bytes: pages that are kept.

    Raises:
        DataError: it is no list of whole numbers.
    """

    def __init__(
        self,
        array: ArrayMeta,
        num_elements: int,
        reader: BoxReader,
        *,
        lengths: ArrayMeta | None = None,
        capacity_bytes: int = _CAPACITY_BYTES,
    ) -> None:
        if array.ndim != 1 or array.shape[0] < 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{array.place} wants to be the row pointers of a CSR matrix, whole numbers along one axis; it is "
                f"{array.dtype}{list(array.shape)}"
            )
        if lengths is not None and (lengths.shape != (array.shape[0] - 1,) or lengths.dtype.kind not in "iu"):
            raise DataError(
                f"{lengths.place} wants to be the lengths of {array.shape[0] - 1} rows, whole numbers along one axis; "
                f"it is {lengths.dtype}{list(lengths.shape)}: write the matrix again"
            )
        self.array = array
        self.lengths = lengths
        self.num_rows = array.shape[0] - 1
        self._num_elements = num_elements
        self._reader = reader
        self._most_pages = max(1, capacity_bytes // (_row_bytes(lengths) * _PAGE_ROWS))
        self._pages: OrderedDict[int, _Page] = OrderedDict()
        self._lock = threading.Lock()
        self.num_pages_read = 0

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_pages", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._pages, self._lock = OrderedDict(), threading.Lock()

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where rows begin and how many elements they have, int64[n] twice.

        Args:
            rows: int64[n], in [0, num_rows).

        Raises:
            DataError: the pointers cannot be read, or are damaged.
        """
        page = rows // _PAGE_ROWS
        begin, lengths = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        for number in np.unique(page).tolist():
            members = slice(None) if len(rows) and (page == number).all() else page == number
            inside = rows[members] - number * _PAGE_ROWS
            values, true_lengths = self._page(number)
            begin[members] = values[inside]
            lengths[members] = values[inside + 1] - values[inside] if true_lengths is None else true_lengths[inside]
        return begin, lengths

    def _page(self, number: int) -> _Page:
        with self._lock:
            if number in self._pages:
                self._pages.move_to_end(number)
                return self._pages[number]
        page = self._read(number)
        with self._lock:
            self.num_pages_read += 1
            self._pages[number] = page
            while len(self._pages) > self._most_pages:
                self._pages.popitem(last=False)
        return page

    def _read(self, number: int) -> _Page:
        first = number * _PAGE_ROWS
        extent = min(_PAGE_ROWS, self.num_rows - first)
        wanted = [(self.array, extent + 1)]
        if self.lengths is not None and extent:
            wanted.append((self.lengths, extent))
        outs = [np.empty((1, count), dtype=np.int64) for _, count in wanted]
        plans = [self._reader.plan(_request(array, first, count)) for array, count in wanted]
        for report in self._reader.read(list(zip(plans, outs, strict=True))):
            if report.errors:
                raise report.errors[0].error
        pointers: IntArray = outs[0][0]
        self._check(pointers, first)
        if len(outs) == 1:
            return pointers, None
        lengths: IntArray = outs[1][0]
        self._check_lengths(lengths, pointers, first)
        return pointers, lengths

    def _check_lengths(self, lengths: IntArray, pointers: IntArray, first: int) -> None:
        assert self.lengths is not None
        wrong = np.flatnonzero((lengths < 0) | (lengths > np.diff(pointers)))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"the row lengths {self.lengths.place} are damaged: row {first + row} would have {lengths[row]} "
                f"elements of {pointers[row + 1] - pointers[row]}; copy or write the matrix again"
            )

    def _check(self, page: IntArray, first: int) -> None:
        falls = np.flatnonzero(np.diff(page) < 0)
        last = first + len(page) - 1 == self.num_rows
        if len(falls):
            what = f"row {first + int(falls[0])} would begin after it ends"
        elif page[0] < 0 or (first == 0 and page[0] != 0):
            what = f"row {first} would begin at element {page[0]}"
        elif page[-1] > self._num_elements or (last and page[-1] != self._num_elements):
            what = f"row {first + len(page) - 2} would end at element {page[-1]} of {self._num_elements}"
        else:
            return
        raise DataError(f"the row pointers {self.array.place} are damaged: {what}; copy or write the matrix again")


def _row_bytes(lengths: ArrayMeta | None) -> int:
    return 8 if lengths is None else 16


def _request(array: ArrayMeta, first: int, count: int) -> BoxRequest:
    return BoxRequest(
        arrays=(array,),
        which=np.zeros(1, dtype=np.int64),
        starts=np.array([[first]], dtype=np.int64),
        shape=(count,),
        dtype=np.dtype(np.int64),
    )
