"""What samplers ask for, and what a loader hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

__all__ = ["LoadRequest", "LoaderOutput"]


class LoadRequest(TypedDict):
    """Rows to be read together, and how they are cut into batches.

    Attributes:
        requests: rows, as slices or as whole numbers [n]; may name a row several times.
        splits: one array for each batch, of places in the rows in the order of `requests`. Rows that no split names
            are not read. Left out: batches of the sampler's `batch_size`, shuffled if its `shuffle` is true.
    """

    requests: list[slice] | NDArray[np.integer[Any]]
    splits: NotRequired[Sequence[NDArray[np.integer[Any]]]]


class LoaderOutput(TypedDict):
    """One batch.

    Attributes:
        X: rows of the matrix: scipy CSR, NumPy, or tensors and arrays of the library that was chosen.
        obs: pandas.DataFrame of what is known about the rows; None without.
        var: pandas.DataFrame of what is known about the columns, the same in every batch; None without.
        index: int64[B], row numbers over all datasets; None unless asked for.
    """

    X: Any
    obs: Any
    var: Any
    index: NDArray[np.int64] | None
