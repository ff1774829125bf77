"""`Columnwise`: a sparse matrix that is stored by columns (CSC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.errors import DataError

__all__ = ["Columnwise"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columnwise:
    """A CSC matrix whose elements are read in pieces, wherever they are.

    Attributes:
        shape: its shape.
        dtype: dtype of its elements.
        indptr: int64[columns + 1], in memory.
        indices: rows of the elements, column after column; anything that is sliced.
        data: the elements.
        label: where it lies, for messages.
    """

    shape: tuple[int, int]
    dtype: DType
    indptr: IntArray
    indices: Any
    data: Any
    label: str = ""

    @classmethod
    def in_memory(cls, matrix: Any) -> Columnwise:
        """Return one of a SciPy matrix."""
        return cls(
            shape=matrix.shape,
            dtype=matrix.dtype,
            indptr=matrix.indptr.astype(np.int64),
            indices=matrix.indices,
            data=matrix.data,
        )

    @classmethod
    def stored(cls, group: Any) -> Columnwise:
        """Return one of a group of Zarr or HDF5."""
        return cls(
            shape=(int(group.attrs["shape"][0]), int(group.attrs["shape"][1])),
            dtype=group["data"].dtype,
            indptr=np.asarray(group["indptr"][:]).astype(np.int64),
            indices=group["indices"],
            data=group["data"],
        )

    @property
    def nnz(self) -> int:
        """Stored elements."""
        return int(self.indptr[-1])

    def elements(self, start: int, stop: int) -> tuple[IntArray, NDArray, NDArray]:
        """Read elements: their rows, columns (int32) and values.

        Raises:
            DataError: they cannot be read.
        """
        try:
            rows, values = np.asarray(self.indices[start:stop]), np.asarray(self.data[start:stop])
        except Exception as error:  # whatever a file format raises
            raise DataError(f"{self.label}: elements {start} to {stop} cannot be read: {error}") from error
        columns = np.searchsorted(self.indptr, np.arange(start, stop), side="right") - 1
        return rows.astype(np.int64), columns.astype(np.int32), values
