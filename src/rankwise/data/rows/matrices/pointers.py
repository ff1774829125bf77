"""`RowPointers`: where the rows of a CSR matrix begin, in pages, so that 10^8 rows need no memory of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.matrices.paging import PagedNumbers
from rankwise.data.store import ArrayMeta, BoxReader
from rankwise.errors import DataError

__all__ = ["RowPointers"]

_CAPACITY_BYTES = 128 * 2**20


class RowPointers:
    """Row i of a CSR matrix holds elements from ``begin[i]`` on: up to ``begin[i + 1]``, or fewer if lengths are given.

    Thread-safe.

    Pages are read when they are first needed and the ones used last are kept, up to 128 MiB: those of 50 million rows,
    or of all rows that a window order mixes at a time.

    Args:
        array: the `indptr` of the matrix, [num_rows + 1], of any integer dtype.
        num_elements: how many elements the matrix stores.
        reader: reads it.
        lengths: the `row_nnz` beside it, [num_rows], where rows end in explicit zeros that only fill a chunk; None =
            rows are all that their pointers hold.
        capacity_bytes: for pages that are kept.

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
        self._sound = _Sound(array.place, self.num_rows, num_elements)
        each = capacity_bytes if lengths is None else capacity_bytes // 2
        self._begins = PagedNumbers(array, reader, self._sound.check, capacity_bytes=each)
        self._lengths = None if lengths is None else PagedNumbers(lengths, reader, _any, capacity_bytes=each)

    @property
    def num_pages_read(self) -> int:
        """Pages that were read so far."""
        return self._begins.num_pages_read + (0 if self._lengths is None else self._lengths.num_pages_read)

    @property
    def capacity_bytes(self) -> int:
        """Memory that pages take once all of it is in use."""
        return self._begins.capacity_bytes + (0 if self._lengths is None else self._lengths.capacity_bytes)

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where rows begin and how many elements they have, int64[n] twice.

        Args:
            rows: int64[n], in [0, num_rows).

        Raises:
            DataError: the pointers cannot be read, or are damaged.
        """
        edges = self._begins.take(np.concatenate([rows, rows + 1]))
        begin, held = edges[: len(rows)], edges[len(rows) :] - edges[: len(rows)]
        if (held < 0).any():  # a row that begins on one page and ends on the next
            raise self._sound.damage(f"row {rows[held.argmin()]} would begin after it ends")
        if self._lengths is None:
            return begin, held
        lengths = self._lengths.take(rows)
        self._check_lengths(lengths, held, rows)
        return begin, lengths

    def _check_lengths(self, lengths: IntArray, held: IntArray, rows: IntArray) -> None:
        assert self.lengths is not None
        wrong = np.flatnonzero((lengths < 0) | (lengths > held))
        if len(wrong):
            which = wrong[0]
            raise DataError(
                f"the row lengths {self.lengths.place} are damaged: row {rows[which]} would have {lengths[which]} "
                f"elements of {held[which]}; copy or write the matrix again"
            )


@dataclass(frozen=True, slots=True)
class _Sound:
    """Refuses pointers that fall, or do not begin and end with the elements."""

    place: str
    num_rows: int
    num_elements: int

    def check(self, page: IntArray, first: int) -> None:
        falls = np.flatnonzero(np.diff(page) < 0)
        last = first + len(page) - 1 == self.num_rows
        if len(falls):
            raise self.damage(f"row {first + int(falls[0])} would begin after it ends")
        if page[0] < 0 or (first == 0 and page[0] != 0):
            raise self.damage(f"row {first} would begin at element {page[0]}")
        if page[-1] > self.num_elements or (last and page[-1] != self.num_elements):
            row = first + len(page) - 2
            raise self.damage(f"row {row} would end at element {page[-1]} of {self.num_elements}")

    def damage(self, what: str) -> DataError:
        return DataError(f"the row pointers {self.place} are damaged: {what}; copy or write the matrix again")


def _any(_page: IntArray, _first: int) -> None:
    """Lengths are compared with their rows' pointers, once it is known which rows are meant."""
