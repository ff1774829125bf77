"""Matrices in memory, read as those on disk are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.loader.blocks import RowBlock

__all__ = ["MemoryRows"]


class MemoryRows:
    """Rows of NumPy arrays or scipy CSR matrices, one over the other.

    Args:
        matrices: all of one kind.
    """

    def __init__(self, matrices: Sequence[Any]) -> None:
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([len(m) if isinstance(m, np.ndarray) else m.shape[0] for m in matrices])
        self._dtype = np.result_type(*(matrix.dtype for matrix in matrices))

    def read(self, rows: IntArray) -> RowBlock:
        """Return copies of rows, in their order.

        Args:
            rows: int64[n], rows over all matrices.
        """
        which = np.searchsorted(self._ends, rows, side="right")
        local = rows - np.concatenate([[0], self._ends[:-1]])[which]
        if isinstance(self._matrices[0], np.ndarray):
            return RowBlock(arrays=(self._dense(which, local),), num_cols=None, errors={})
        return RowBlock(arrays=self._sparse(which, local), num_cols=int(self._matrices[0].shape[1]), errors={})

    def _dense(self, which: IntArray, local: IntArray) -> NDArray:
        out = np.empty((len(local), *self._matrices[0].shape[1:]), dtype=self._dtype)
        for number in np.unique(which).tolist():
            members = which == number
            out[members] = self._matrices[number][local[members]]
        return out

    def _sparse(self, which: IntArray, local: IntArray) -> tuple[NDArray, ...]:
        import scipy.sparse

        numbers = np.unique(which).tolist() or [0]
        parts = [self._matrices[number][local[which == number]] for number in numbers]
        taken = parts[0] if len(parts) == 1 else scipy.sparse.vstack(parts, format="csr")
        if len(parts) > 1:  # from datasets' order to that of the rows
            places = np.empty(len(local), dtype=np.int64)
            places[np.argsort(which, kind="stable")] = np.arange(len(local))
            taken = taken[places]
        return taken.data.astype(self._dtype, copy=False), taken.indices, taken.indptr.astype(np.int64)
