"""`spread_rows`: CSR rows into dense ones, all columns or chosen ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, NDArray

__all__ = ["spread_rows"]


def spread_rows(
    data: NDArray,
    indices: NDArray,
    indptr: NDArray,
    *,
    num_cols: int,
    places: npt.NDArray[np.int32] | None,
    out: NDArray,
) -> BoolArray:
    """Write CSR rows into dense rows; columns that a row has several times are added up.

    The plain way, for what cannot be spread while it is decoded: see `BoxReader.spread`.

    Args:
        data: [nnz], of the dtype of `out`.
        indices: [nnz], columns, whole numbers.
        indptr: [B + 1].
        num_cols: columns of the CSR rows.
        places: int32[num_cols], where a column goes in a dense row, its width = nowhere; None = to its own number.
        out: [B, width]; whatever it held is overwritten.

    Returns:
        bool[B]: rows that name a column that there is not, which is left out then.
    """
    out[...] = 0
    outside: BoolArray = np.zeros(len(out), dtype=np.bool_)
    rows = np.repeat(np.arange(len(out)), np.diff(indptr))
    known = (indices >= 0) & (indices < num_cols)
    outside[rows[~known]] = True
    columns = np.where(known, indices, 0).astype(np.int64)
    at = columns if places is None else places[columns]
    chosen = known & (at < out.shape[1])
    add = np.logical_or if out.dtype.kind == "b" else np.add
    add.at(out, (rows[chosen], at[chosen]), data[chosen])
    return outside
