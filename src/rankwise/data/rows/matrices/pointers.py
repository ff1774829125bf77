"""`RowPointers`: where the rows of a CSR matrix begin, in pages, so that 10^8 rows need no memory of their own."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.store import ArrayMeta, BoxReader, BoxRequest
from rankwise.errors import DataError

__all__ = ["RowPointers"]

_PAGE_ROWS = 2**16  # 512 KiB; a batch out of a window touches few of them
_CAPACITY_BYTES = 64 * 2**20


class RowPointers:
    """Row i of a CSR matrix holds the elements ``begin[i]`` to ``begin[i + 1]``; thread-safe.

    Pages are read when they are first needed and the ones used last are kept, up to 64 MiB: those of 8 million rows.

    Args:
        array: the `indptr` of the matrix, [num_rows + 1], of any integer dtype.
        num_elements: how many elements the matrix stores.
        reader: reads it.
        capacity_bytes: pages that are kept.

    Raises:
        DataError: it is no list of whole numbers.
    """

    def __init__(
        self, array: ArrayMeta, num_elements: int, reader: BoxReader, *, capacity_bytes: int = _CAPACITY_BYTES
    ) -> None:
        if array.ndim != 1 or array.shape[0] < 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{array.place} wants to be the row pointers of a CSR matrix, whole numbers along one axis; it is "
                f"{array.dtype}{list(array.shape)}"
            )
        self.array = array
        self.num_rows = array.shape[0] - 1
        self._num_elements = num_elements
        self._reader = reader
        self._most_pages = max(1, capacity_bytes // (8 * _PAGE_ROWS))
        self._pages: OrderedDict[int, IntArray] = OrderedDict()
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
        begin, end = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        for number in np.unique(page).tolist():
            members = slice(None) if len(rows) and (page == number).all() else page == number
            inside = rows[members] - number * _PAGE_ROWS
            values = self._page(number)
            begin[members], end[members] = values[inside], values[inside + 1]
        return begin, end - begin

    def _page(self, number: int) -> IntArray:
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

    def _read(self, number: int) -> IntArray:
        first = number * _PAGE_ROWS
        extent = min(_PAGE_ROWS, self.num_rows - first) + 1
        request = BoxRequest(
            arrays=(self.array,),
            which=np.zeros(1, dtype=np.int64),
            starts=np.array([[first]], dtype=np.int64),
            shape=(extent,),
            dtype=np.dtype(np.int64),
        )
        out = np.empty((1, extent), dtype=np.int64)
        [report] = self._reader.read([(self._reader.plan(request), out)])
        if report.errors:
            raise report.errors[0].error
        page: IntArray = out[0]
        self._check(page, first)
        return page

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
