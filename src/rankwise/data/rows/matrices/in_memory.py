"""`MemoryMatrix`: a matrix in memory, or in a file that is read into memory as a whole."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.errors import DataError

__all__ = ["MemoryMatrix", "gather_rows"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryMatrix:
    """A matrix of an AnnData in memory, or of an HDF5 file, which is read into memory as a whole on first use."""

    place: str
    shape: tuple[int, ...]  # rows, then the shape of one
    dtype: DType
    num_elements: int | None  # stored elements of a sparse one; None = it is dense
    identity: str  # hash of the row names
    is_file: bool  # whether it is still in a file
    load: Callable[[], Any]  # returns it: a NumPy array, or a SciPy sparse matrix
    chunk_rows: ClassVar[int] = 1  # rows in memory need no locality

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "values"}

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row."""
        if self.num_elements is None:
            return math.prod(self.row_shape) * self.dtype.itemsize
        return self.num_elements / max(1, self.num_rows) * (self.dtype.itemsize + 4)

    @property
    def fingerprint(self) -> str:
        """Hash of the names of its rows, and of its metadata."""
        facts = ["held", self.shape, self.dtype.str, self.num_elements, self.identity]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    @cached_property
    def values(self) -> Any:
        """The matrix; a sparse one as CSR.

        Raises:
            DataError: it cannot be read, or has invalid column numbers.
        """
        found = self.load()
        if self.num_elements is None:
            return np.asarray(found)
        try:
            found = found.tocsr()
            found.check_format(full_check=True)
        except ValueError as error:
            raise DataError(f"the sparse matrix {self.place} is damaged: {error}") from error
        return found


def gather_rows(matrices: Sequence[Any], ends: IntArray, rows: IntArray) -> tuple[NDArray, ...]:
    """Return copies of rows in order: one array, or for CSR matrices data, indices and row pointers.

    Both `ends`, the ends of the matrices, and `rows` count the rows of all matrices, int64.
    """
    which = np.searchsorted(ends, rows, side="right")
    local = rows - np.concatenate([[0], ends[:-1]])[which]
    numbers = np.unique(which).tolist() or [0]
    dtype = np.result_type(*(matrix.dtype for matrix in matrices))
    if isinstance(matrices[0], np.ndarray):
        out = np.empty((len(local), *matrices[0].shape[1:]), dtype=dtype)
        for number in numbers:
            members = which == number
            out[members] = matrices[number][local[members]]
        return (out,)
    import scipy.sparse

    parts = [matrices[number][local[which == number]] for number in numbers]
    taken = parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr")
    if len(parts) > 1:  # from the order of the matrices to that of the rows
        places = np.empty(len(local), dtype=np.int64)
        places[np.argsort(which, kind="stable")] = np.arange(len(local))
        taken = taken[places]
    return taken.data.astype(dtype, copy=False), taken.indices, taken.indptr.astype(np.int64)
