"""What is usually done to counts, on whole batches: sparse or dense, of torch, of NumPy and SciPy, or of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.feed.csr import csr_parts, scipy_csr, torch_csr
from rankwise.data.rows.transforms_jax import jax_normalized

if TYPE_CHECKING:
    import torch

__all__ = ["log1p_cpm", "log1p_normalized"]


def log1p_cpm(fields: dict[str, Any], _keys: Any) -> dict[str, Any]:
    """Return the fields with ``X`` as log(1 + counts per million): a ``batch_transform=``.

    Args:
        fields: "X" is [B, genes], counts of any dtype; the others stay.
    """
    return {**fields, "X": log1p_normalized(fields["X"], total=1e6)}


def log1p_normalized(counts: Any, *, total: float) -> Any:
    """Return ``log1p(counts * total / sum of the row)``; rows without counts stay zero.

    Each row depends on itself alone, so the result does not depend on how batches are cut. With chosen genes the sum
    is that of these genes.

    Args:
        counts: [B, genes], a matrix of torch, NumPy, SciPy (CSR) or JAX (BCSR); floats stay what they are, others
            become float32.
        total: what rows add up to before the logarithm.

    Returns:
        A matrix of the same kind; of a sparse one columns and row pointers are shared.
    """
    if type(counts).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return jax_normalized(counts, total)
    parts = csr_parts(counts)
    if hasattr(counts, "layout"):
        return _torch_dense(counts, total) if parts is None else _torch_sparse(parts, counts.shape[1], total)
    return _numpy_dense(counts, total) if parts is None else _scipy_sparse(parts, counts.shape[1], total)


def _torch_dense(counts: torch.Tensor, total: float) -> torch.Tensor:
    import torch

    values = counts if counts.is_floating_point() else counts.to(torch.float32)
    sums = values.sum(dim=1, keepdim=True)
    return torch.log1p(values * torch.where(sums > 0, total / sums, 0))


def _torch_sparse(parts: tuple[torch.Tensor, ...], num_cols: int, total: float) -> torch.Tensor:
    import torch

    data, indices, indptr = parts
    values = data if data.is_floating_point() else data.to(torch.float32)
    lengths = indptr.diff().to(torch.int64)
    sums = torch.segment_reduce(values, "sum", lengths=lengths, initial=0, unsafe=True)
    scale = torch.where(sums > 0, total / sums, 0).repeat_interleave(lengths)
    return torch_csr((torch.log1p(values * scale), indices, indptr), num_cols)


def _numpy_dense(counts: NDArray, total: float) -> NDArray:
    values = _as_floats(counts)
    sums = values.sum(axis=1, keepdims=True)
    scaled: NDArray = np.log1p(values * _scale(sums, total))
    return scaled


def _scipy_sparse(parts: tuple[NDArray, ...], num_cols: int, total: float) -> Any:
    data, indices, indptr = parts
    values, lengths = _as_floats(data), np.diff(indptr)
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=values, minlength=len(lengths))
    scale = np.repeat(_scale(sums.astype(np.float64), total).astype(values.dtype), lengths)
    return scipy_csr((np.log1p(values * scale), indices, indptr), num_cols)


def _as_floats(values: NDArray) -> NDArray:
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def _scale(sums: NDArray, total: float) -> NDArray:
    scale: NDArray = np.divide(total, sums, out=np.zeros_like(sums), where=sums > 0)
    return scale
