"""Ragged fields: CSR matrices of torch and SciPy over the memory of a batch, and their single rows."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, NDArray, Source
from rankwise.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    import torch


def torch_csr(parts: tuple[torch.Tensor, ...], num_cols: int) -> torch.Tensor:
    """Return a ``torch.sparse_csr`` tensor over data, indices and row pointers, without copying or checking them."""
    import torch

    quiet_csr()
    data, indices, indptr = parts
    size = (len(indptr) - 1, num_cols)
    return torch.sparse_csr_tensor(indptr, indices, data, size=size, check_invariants=False)


def scipy_csr(parts: tuple[NDArray, ...], num_cols: int) -> Any:
    """Return a ``scipy.sparse.csr_matrix`` over data, indices and row pointers, without copying them.

    Raises:
        MissingExtraError: SciPy is not installed.
        ConfigError: SciPy has no sparse matrices of this dtype, for example half precision.
    """
    try:
        made = _csr_matrix()((len(parts[2]) - 1, num_cols), dtype=parts[0].dtype)
    except ValueError as error:
        raise ConfigError(
            f"SciPy has no sparse matrices of {parts[0].dtype}: give the source another dtype=, use dense rows, or a "
            "device, where they are torch tensors"
        ) from error
    made.data, made.indices, made.indptr = parts  # the constructor would copy arrays that are views of a larger one
    return made


@functools.cache
def _csr_matrix() -> Any:
    with needs_extra(
        "sparse rows without a device are SciPy matrices: pip install 'rankwise[rows]', or use a device or dense rows"
    ):
        from scipy.sparse import csr_matrix
    return csr_matrix


def csr_parts(field: Any) -> tuple[Any, ...] | None:
    """Return data, indices and row pointers of a CSR matrix of torch or SciPy; None for everything else."""
    if hasattr(field, "indptr"):
        return field.data, field.indices, field.indptr
    if str(getattr(field, "layout", "")) == "torch.sparse_csr":
        return field.values(), field.col_indices(), field.crow_indices()
    return None


def copied_field(field: Any) -> Any:
    """Return a field with memory of its own; JAX arrays already have that."""
    if hasattr(field, "addressable_data"):
        return field
    if hasattr(field, "clone"):
        return field.clone()
    return field.copy() if hasattr(field, "copy") else field


def first_twice(field: Any, *, some: bool) -> Any:
    """Return two samples with memory of their own: the first sample twice, or zeros if there is none.

    Args:
        field: batch axis first.
        some: whether the field has any sample.
    """
    parts = csr_parts(field)
    if parts is not None:
        return _csr_twice(parts, field.shape[1], some=some)
    if some:
        return field[[0, 0]]
    shape = (2, *field.shape[1:])
    return field.new_zeros(shape) if hasattr(field, "new_zeros") else np.zeros(shape, dtype=field.dtype)


def _csr_twice(parts: tuple[Any, ...], num_cols: int, *, some: bool) -> Any:
    data, indices, indptr = parts
    end = int(indptr[1]) if some else 0
    bounds = [end * row for row in range(3)]
    if hasattr(data, "new_zeros"):
        return torch_csr((data[:end].repeat(2), indices[:end].repeat(2), indptr.new_tensor(bounds)), num_cols)
    return scipy_csr((np.tile(data[:end], 2), np.tile(indices[:end], 2), np.array(bounds, indptr.dtype)), num_cols)


@functools.cache
def quiet_csr() -> None:
    """Silence torch's warning that CSR tensors are in beta, which it gives for the first one in each process.

    Called when loaders are made: threads must not change warning filters.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        none = torch.zeros(0, dtype=torch.int32)
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int32), none, none, size=(0, 0), check_invariants=False)


def num_cols_of(source: Source) -> dict[str, int]:
    """Return the number of columns of each ragged field of a source."""
    return {name: math.prod(spec.shape) for name, spec in source.fields.items() if spec.ragged}


def one_row(arrays: tuple[NDArray, ...], place: int, num_cols: int | None) -> Any:
    """Return one sample of a field: its array, or for a ragged field a SciPy CSR matrix [1, num_cols], without a copy.

    Args:
        arrays: the arrays of the field.
        place: which sample.
        num_cols: columns of a ragged field; None = the field is dense.
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
    """Return the spec of a field from one of its samples: an array, or a sparse row."""
    if is_sparse(value):
        return FieldSpec(shape=(value.shape[1],), dtype=value.dtype, ragged=True)
    return FieldSpec(shape=value.shape, dtype=value.dtype)


def fill_rows(rows: Sequence[Mapping[str, Any]], specs: Mapping[str, FieldSpec], into: BatchBuffer) -> None:
    """Reserve a buffer and put samples into it: its size is known only when all samples are there."""
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
