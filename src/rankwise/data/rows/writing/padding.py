"""Explicit zeros after the elements of rows."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import IntArray, NDArray

__all__ = ["pad_rows"]


def pad_rows(
    data: NDArray, indices: NDArray, lengths: IntArray, pads: IntArray, num_cols: int
) -> tuple[NDArray, NDArray]:
    """Put zeros after the elements of rows, in the first columns that each of them does not use.

    Args:
        data: [nnz], elements of the rows, one row after the other.
        indices: [nnz], their columns.
        lengths: int64[n], elements of each row.
        pads: int64[n], zeros for each row.
        num_cols: columns of the matrix.

    Returns:
        Elements and columns with the zeros, [nnz + zeros] each.
    """
    if not pads.any():
        return data, indices
    ends = np.cumsum(lengths)
    rows = np.flatnonzero(pads)
    columns = [
        _free_columns(indices[ends[row] - lengths[row] : ends[row]], num_cols)[: pads[row]] for row in rows.tolist()
    ]
    places = np.repeat(ends[rows], pads[rows])
    padded_indices = np.insert(indices, places, np.concatenate(columns).astype(indices.dtype))
    return np.insert(data, places, np.zeros(len(places), dtype=data.dtype)), padded_indices


def _free_columns(used: NDArray, num_cols: int) -> IntArray:
    free = np.ones(num_cols, dtype=bool)
    free[used] = False
    found: IntArray = np.flatnonzero(free)
    return found
