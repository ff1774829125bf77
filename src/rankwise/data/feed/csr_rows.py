"""Single rows of ragged fields: out of a batch for a transform, and what it returns into a batch again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, NDArray, Source
from rankwise.data.feed.csr import scipy_csr

__all__ = ["fill_rows", "is_sparse", "num_cols_of", "one_row", "row_spec"]


def num_cols_of(source: Source) -> dict[str, int]:
    """Return the columns of the ragged fields of a source."""
    return {name: math.prod(spec.shape) for name, spec in source.fields.items() if spec.ragged}


def one_row(arrays: tuple[NDArray, ...], place: int, num_cols: int | None) -> Any:
    """Return one sample of a field: its array, or of a ragged one a SciPy CSR matrix [1, num_cols], not copied.

    Args:
        arrays: the arrays of the field.
        place: which sample.
        num_cols: columns of a ragged one; None = it is dense.
    """
    if num_cols is None:
        return arrays[0][place]
    data, indices, indptr = arrays
    part = slice(int(indptr[place]), int(indptr[place + 1]))
    bounds = np.array([0, part.stop - part.start], dtype=indptr.dtype)
    return scipy_csr((data[part], indices[part], bounds), num_cols)


def is_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix of SciPy."""
    return hasattr(value, "tocsr")


def row_spec(value: Any) -> FieldSpec:
    """Return what a field looks like of which this is a sample: an array, or a sparse row."""
    if is_sparse(value):
        return FieldSpec(shape=(value.shape[1],), dtype=value.dtype, ragged=True)
    return FieldSpec(shape=value.shape, dtype=value.dtype)


def fill_rows(rows: Sequence[Mapping[str, Any]], specs: Mapping[str, FieldSpec], into: BatchBuffer) -> None:
    """Put samples into a buffer, which is reserved: how large it must be is known when all of them are there."""
    ragged = {name for name, spec in specs.items() if spec.ragged}
    into.reserve(specs, len(rows), {name: sum(row[name].nnz for row in rows) for name in ragged})
    for name in specs:
        arrays = into.arrays(name)
        if name not in ragged:
            for place, row in enumerate(rows):
                arrays[0][place] = row[name]
            continue
        data, indices, indptr = arrays
        indptr[0] = 0
        indptr[1:] = np.cumsum([row[name].nnz for row in rows])
        for place, row in enumerate(rows):
            part = slice(int(indptr[place]), int(indptr[place + 1]))
            data[part], indices[part] = row[name].data, row[name].indices
