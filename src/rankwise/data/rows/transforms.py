"""Common transforms of counts, on whole batches: sparse or dense, in torch, NumPy and SciPy, or JAX."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.feed.memory.csr import csr_parts, scipy_csr, torch_csr
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

_PIECE = 1 << 16  # elements at a time, to fit the cache of a core
_SINGLE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Log1pCounts:
    """A ``batch_transform=``: a field of counts becomes ``log1p(counts * total / size of the row)``; others stay.

    The size of a row, its library size, is the sum of its values in the batch: with `genes=` those of the selected
    genes alone. `size` takes it from a field instead, for example an obs column with the counts over all genes.

    For dense rows on the CPU, a loader of rows applies it on the reader thread, where the rows are made: the step does
    not wait for it, and only nonzero counts are processed.

    Attributes:
        total: the sum of a row before the logarithm.
        field: name of the field, [B, genes], counts of any dtype.
        size: name of the field of sizes, [B] numbers, e.g. ``"n_counts"`` with the loader's ``obs=["n_counts"]``.
            Rows of size 0 become zeros; if a size is missing, counts become NaN. None = the sum of the row.

    Raises:
        ConfigError: `total` is not positive.
    """

    total: float = 1e6
    field: str = "X"
    size: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.total < math.inf:
            raise ConfigError(f"Log1pCounts needs a total above 0, got {self.total}")
        if self.size is not None and (not isinstance(self.size, str) or self.size == self.field):
            raise ConfigError(
                f"Log1pCounts needs size= as the name of a field of sizes, such as 'n_counts'; got {self.size!r}"
            )

    def __call__(self, fields: dict[str, Any], _keys: Any) -> dict[str, Any]:
        """Return the fields, with the counts transformed.

        Raises:
            ConfigError: the batch has no such field.
        """
        if self.field not in fields:
            raise ConfigError(
                f"Log1pCounts(field={self.field!r}) finds no such field in the batch, which has "
                f"{', '.join(map(repr, fields))}: set field= to the field of the counts"
            )
        if self.size is not None and self.size not in fields:
            raise ConfigError(
                f"Log1pCounts(size={self.size!r}) finds no such field in the batch, which has "
                f"{', '.join(map(repr, fields))}: pass the column to the loader, obs=[{self.size!r}]"
            )
        sizes = None if self.size is None else fields[self.size]
        return {**fields, self.field: log1p_normalized(fields[self.field], total=self.total, sizes=sizes)}

    def change(self, rows: NDArray, sizes: NDArray | None = None) -> None:
        """Transform dense rows, floats [B, genes], in place; a few at a time, so that they stay in the cache."""
        step = max(1, _PIECE // max(1, rows.shape[1]))
        with np.errstate(all="ignore"):  # rows that could not be read have undefined values
            for low in range(0, len(rows), step):
                part = slice(low, low + step)
                _change(rows[part], self.total, None if sizes is None else sizes[part])


# Counts per million, then their logarithm.
log1p_cpm = Log1pCounts()


def log1p_normalized(counts: Any, *, total: float, sizes: Any = None) -> Any:
    """Return ``log1p(counts * total / size of the row)``; rows without counts stay zero.

    Each row depends on itself alone, so the result does not depend on the batch. Half precision, which cannot
    hold such sums, is computed in single precision.

    Args:
        counts: [B, genes], a matrix of torch, NumPy, SciPy (CSR) or JAX (BCSR); floats keep their dtype,
            other dtypes become float32.
        total: the sum of a row before the logarithm.
        sizes: [B] numbers of the same library, the size of each row; None = the sum of its values in `counts`.

    Returns:
        A matrix of the same kind; a sparse one shares columns and row pointers.
    """
    if type(counts).__module__.partition(".")[0] in ("jax", "jaxlib"):
        if not hasattr(counts, "indptr"):
            return _compiled()(counts, None, total, sizes)
        data = _compiled()(counts.data, counts.indptr, total, sizes)
        return type(counts)((data, counts.indices, counts.indptr), shape=counts.shape)
    parts = csr_parts(counts)
    if hasattr(counts, "layout"):
        return _in_torch(counts, parts, total, sizes)
    if parts is not None:
        return _scipy_sparse(parts, counts.shape[1], total, sizes)
    values = _as_floats(counts)
    sums = values.sum(axis=1) if sizes is None else np.asarray(sizes).astype(values.dtype)
    made: NDArray = np.log1p(values * _scale(sums, total)[:, None])
    return made.astype(counts.dtype, copy=False) if counts.dtype.kind == "f" else made


def _in_torch(
    counts: torch.Tensor, parts: tuple[torch.Tensor, ...] | None, total: float, sizes: torch.Tensor | None
) -> torch.Tensor:
    """Transform a tensor; `parts` are the arrays of a sparse one."""
    import torch

    held = counts if parts is None else parts[0]
    values = held if held.dtype in (torch.float32, torch.float64) else held.to(torch.float32)
    lengths = None if parts is None else parts[2].diff().to(torch.int64)
    if sizes is not None:
        sums = sizes.to(values.dtype)
    elif lengths is None:
        sums = values.sum(dim=1)
    else:
        sums = torch.segment_reduce(values, "sum", lengths=lengths, initial=0, unsafe=True)
    scale = torch.where(sums <= 0, 0, total / sums)
    made = torch.log1p(values * (scale[:, None] if lengths is None else scale.repeat_interleave(lengths)))
    made = made.to(held.dtype) if held.is_floating_point() else made
    return made if parts is None else torch_csr((made, *parts[1:]), counts.shape[1])


def _scipy_sparse(parts: tuple[NDArray, ...], num_cols: int, total: float, sizes: NDArray | None) -> Any:
    data, indices, indptr = parts
    values, lengths = _as_floats(data), np.diff(indptr)
    if sizes is None:
        sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=values, minlength=len(lengths))
    else:
        sums = np.asarray(sizes)
    scale = np.repeat(_scale(sums.astype(np.float64), total).astype(values.dtype), lengths)
    return scipy_csr((np.log1p(values * scale), indices, indptr), num_cols)


def _change(rows: NDArray, total: float, sizes: NDArray | None) -> None:
    if rows.itemsize < _SINGLE_BYTES:
        rows[...] = log1p_normalized(rows, total=total, sizes=sizes)
        return
    sums = rows.sum(axis=1) if sizes is None else sizes.astype(rows.dtype)
    scale = _scale(sums, total).astype(rows.dtype, copy=False)
    held = rows != 0
    counts = np.count_nonzero(held, axis=1)
    if 2 * counts.sum() > rows.size or not np.isfinite(scale).all():  # without a size, zeros become NaN, too
        rows *= scale[:, None]
        np.log1p(rows, out=rows)
        return
    flat, places = rows.reshape(-1), np.flatnonzero(held)
    values = flat[places]
    values *= np.repeat(scale, counts)
    flat[places] = np.log1p(values, out=values)


def _as_floats(values: NDArray) -> NDArray:
    enough = values.dtype.kind == "f" and values.itemsize >= _SINGLE_BYTES
    return values if enough else values.astype(np.float32)


def _scale(sums: NDArray, total: float) -> NDArray:
    scale: NDArray = np.divide(total, sums, out=np.zeros_like(sums), where=~(sums <= 0))  # NaN stays NaN
    return scale


@functools.cache
def _compiled() -> Any:
    """Return the transform of JAX arrays: of dense rows, or of the elements of a BCSR matrix with row pointers."""
    import jax
    import jax.numpy as jnp

    def change(counts: Any, indptr: Any, total: Any, sizes: Any) -> Any:
        values = counts if counts.dtype in (jnp.float32, jnp.float64) else counts.astype(jnp.float32)
        row = None
        if indptr is not None:
            # elements stored beyond the last row are padding: zeros, which stay zero in any row
            row = jnp.repeat(jnp.arange(len(indptr) - 1), jnp.diff(indptr), total_repeat_length=len(counts))
        if sizes is not None:
            sums = sizes.astype(values.dtype)
        else:
            sums = values.sum(axis=1) if row is None else jax.ops.segment_sum(values, row, len(indptr) - 1)
        scale = jnp.where(sums <= 0, 0, total / sums).astype(sums.dtype)
        made = jnp.log1p(values * (scale[:, None] if row is None else scale[row]))
        return made.astype(counts.dtype) if jnp.issubdtype(counts.dtype, jnp.floating) else made

    return jax.jit(change)
