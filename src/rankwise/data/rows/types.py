"""Requests of samplers, and output of loaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

__all__ = ["LoadRequest", "LoaderOutput"]


class LoadRequest(TypedDict):
    """Rows to be read together, and how they are cut into batches.

    Attributes:
        requests: rows, as slices or as integers [n]; duplicates are allowed.
        splits: one array for each batch, with places in the rows in the order of `requests`. Rows in no split
            are not read. If missing: batches of the sampler's `batch_size`, shuffled if its `shuffle` is true.
    """

    requests: list[slice] | NDArray[np.integer[Any]]
    splits: NotRequired[Sequence[NDArray[np.integer[Any]]]]


class LoaderOutput(TypedDict):
    """One batch.

    Attributes:
        X: rows of the matrix: SciPy CSR, NumPy, or tensors and arrays of the chosen library.
        obs: pandas.DataFrame about the rows, or None.
        var: pandas.DataFrame about the columns, the same in every batch, or None.
        index: int64[B], row numbers over all datasets; None unless requested.
    """

    X: Any
    obs: Any
    var: Any
    index: NDArray[np.int64] | None
