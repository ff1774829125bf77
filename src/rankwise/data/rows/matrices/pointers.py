"""`RowPointers`: where the rows of a CSR matrix begin, in pages, so that 10^8 rows need no memory of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.matrices.judging import AnyNumbers, PointerJudge
from rankwise.data.rows.matrices.paging import PagedNumbers
from rankwise.data.store import ArrayMeta, BoxError, BoxReader
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
        num_cols: columns of the matrix, so most elements of a row; None = not known.
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
        num_cols: int | None = None,
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
        self._filled: set[int] = set()  # chunks of lengths that are not all 0
        each = capacity_bytes if lengths is None else capacity_bytes // 2
        judge = PointerJudge(num_rows=self.num_rows, num_elements=num_elements, num_cols=num_cols)
        self._begins = PagedNumbers(array, reader, judge, what="row pointers", capacity_bytes=each)
        self._lengths = (
            None
            if lengths is None
            else PagedNumbers(lengths, reader, AnyNumbers(), what="row lengths", capacity_bytes=each)
        )

    @property
    def num_pages_read(self) -> int:
        """Pages that were read so far."""
        return self._begins.num_pages_read + (0 if self._lengths is None else self._lengths.num_pages_read)

    @property
    def capacity_bytes(self) -> int:
        """Memory that pages take once all of it is in use."""
        return self._begins.capacity_bytes + (0 if self._lengths is None else self._lengths.capacity_bytes)

    def spans(self, rows: IntArray) -> tuple[IntArray, IntArray, tuple[BoxError, ...]]:
        """Return where rows begin and how many elements they have, int64[n] twice, and why that is not known of some.

        Rows of which it is not known have no elements here. They are those of damaged chunks: of a chunk that cannot be
        decoded, or in which a number cannot be what was written, none is believed.

        Args:
            rows: int64[n], in [0, num_rows).

        Raises:
            DataError: there is trouble with the storage.
        """
        edges, errors = self._begins.take(np.concatenate([rows, rows + 1]))
        lost = {index % len(rows): error for index, error in errors.items()}
        begin, held = edges[: len(rows)], edges[len(rows) :] - edges[: len(rows)]
        falls = [index for index in np.flatnonzero(held < 0).tolist() if index not in lost]
        if falls:  # rows that begin on one page and end on the next: either may be to blame
            for row in rows[falls].tolist():
                for place in (row, row + 1):
                    self._begins.distrust(place, f"row {row} would begin after it ends")
            return self.spans(rows)
        lengths = held if self._lengths is None else self._true_lengths(self._lengths, rows, held, lost)
        gone = list(lost)
        begin[gone] = lengths[gone] = 0
        return begin, lengths, tuple(replace(lost[index], box=index) for index in sorted(lost))

    def _true_lengths(
        self, numbers: PagedNumbers, rows: IntArray, held: IntArray, lost: dict[int, BoxError]
    ) -> IntArray:
        """Lengths without the zeros that fill chunks; adds to `lost` what is wrong with them."""
        lengths, errors = numbers.take(rows)
        for index, error in errors.items():
            lost.setdefault(index, error)
        wrong = {
            index: f"row {rows[index]} would have {lengths[index]} elements of {held[index]}"
            for index in np.flatnonzero((lengths < 0) | (lengths > held)).tolist()
            if index not in lost
        }
        wrong = wrong or self._blank_ones(numbers, rows, np.flatnonzero((lengths == 0) & (held > 0)), lost)
        if not wrong:
            return lengths
        for index, why in wrong.items():
            numbers.distrust(int(rows[index]), why)
        return self._true_lengths(numbers, rows, held, lost)

    def _blank_ones(
        self, numbers: PagedNumbers, rows: IntArray, indices: IntArray, lost: Mapping[int, BoxError]
    ) -> dict[int, str]:
        """What is wrong with rows of length 0 that have room: whether no row of their chunk has a length.

        That is what a chunk looks like which is not in the store.
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
                found[index] = f"row {start} and those behind it would be empty"
        return found
