"""Matrices in memory, read as those on disk are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.loader.blocks import RowBlock
from rankwise.data.rows.matrices import gather_rows

__all__ = ["MemoryRows"]


class MemoryRows:
    """Rows of NumPy arrays or scipy CSR matrices, one over the other.

    Args:
        matrices: all of one kind.
    """

    def __init__(self, matrices: Sequence[Any]) -> None:
        self._matrices = tuple(matrices)
        self._ends: IntArray = np.cumsum([len(m) if isinstance(m, np.ndarray) else m.shape[0] for m in matrices])

    def read(self, rows: IntArray) -> RowBlock:
        """Return copies of rows, in their order.

        Args:
            rows: int64[n], rows over all matrices.
        """
        is_dense = isinstance(self._matrices[0], np.ndarray)
        num_cols = None if is_dense else int(self._matrices[0].shape[1])
        return RowBlock(arrays=gather_rows(self._matrices, self._ends, rows), num_cols=num_cols, errors={})
