"""`Table`: a matrix of an input, read in blocks of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType
from rankwise.errors import DataError

__all__ = ["Table", "table_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """One matrix of an input.

    Attributes:
        name: "X", "layers/counts", "obsm/pca", ...
        sparse: whether blocks come as CSR matrices.
        shape: its shape.
        dtype: dtype of its elements.
        row_bytes: decoded bytes of a row, on average.
        held: what is sliced.
    """

    name: str
    sparse: bool
    shape: tuple[int, ...]
    dtype: DType
    row_bytes: float
    held: Any

    def block(self, start: int, stop: int) -> Any:
        """Return rows `start` to `stop` as a CSR matrix or an array, in memory.

        Raises:
            DataError: they cannot be read.
        """
        try:
            part = self.held[start:stop]
            part = part.compute() if hasattr(part, "compute") else part
        except Exception as error:  # whatever a file format raises
            raise DataError(f"rows {start} to {stop} of {self.name} cannot be read: {error}") from error
        return part.tocsr() if self.sparse else np.asarray(part)


def table_of(name: str, held: Any) -> Table | None:
    """Look at a matrix of an AnnData, in memory, backed or lazy; None for what has no rows of numbers, such as a table.

    Args:
        name: its name.
        held: SciPy matrix, array, sparse dataset of anndata, array of Zarr, HDF5 or dask.
    """
    import scipy.sparse as sp

    if getattr(held, "format", None) == "csc":
        held = (held.to_memory() if hasattr(held, "to_memory") else held).tocsr()
    shape, dtype = getattr(held, "shape", None), getattr(held, "dtype", None)
    if not shape or not isinstance(dtype, np.dtype) or dtype.kind not in "biufc":
        return None
    sparse = sp.issparse(held) or hasattr(held, "to_memory") or sp.issparse(getattr(held, "_meta", None))
    if sparse:
        row_bytes = _num_elements(held) / max(1, shape[0]) * (dtype.itemsize + 8)
    else:
        row_bytes = float(math.prod(shape[1:]) * dtype.itemsize)
    return Table(name=name, sparse=sparse, shape=tuple(shape), dtype=dtype, row_bytes=row_bytes, held=held)


def _num_elements(held: Any) -> float:
    if hasattr(held, "nnz"):
        return float(held.nnz)
    group = getattr(held, "group", None)  # of a sparse dataset of anndata
    if group is not None:
        return float(group["data"].shape[0])
    return float(math.prod(held.shape)) / 10  # a lazy one tells when it is read
