"""`RowBlock`: the rows of one load request, in the order in which they are handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.feed.csr import scipy_csr
from rankwise.errors import DataError

__all__ = ["RowBlock"]

_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Rows as they were read.

    Attributes:
        arrays: of dense rows one array [n, *row shape]; of a CSR matrix data [nnz], indices [nnz] and indptr [n + 1].
        num_cols: columns of a CSR matrix; None for dense rows.
        errors: why rows could not be read, by their place in the block.
    """

    arrays: tuple[NDArray, ...]
    num_cols: int | None
    errors: Mapping[int, DataError]

    def part(self, first: int, last: int) -> Any:
        """Return rows [first, last): a view of an array, or a CSR matrix over views.

        Raises:
            DataError: one of them could not be read.
        """
        for place in sorted(self.errors):
            if first <= place < last:
                raise self.errors[place]
        if self.num_cols is None:
            return self.arrays[0][first:last]
        data, indices, indptr = self.arrays
        begin, end = int(indptr[first]), int(indptr[last])
        pointers: IntArray = indptr[first : last + 1] - begin
        if end - begin <= _MOST_INT32 and indices.dtype == np.int32:
            pointers = pointers.astype(np.int32)  # both of one dtype, as scipy and torch want it
        return scipy_csr((data[begin:end], indices[begin:end], pointers), self.num_cols)
