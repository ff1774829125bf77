"""Transforms of counts that are JAX arrays: compiled once for each shape."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["jax_normalized"]


def jax_normalized(counts: Any, total: float, sizes: Any) -> Any:
    """Return ``log1p(counts * total / size of the row)`` of an array or a BCSR matrix; see `log1p_normalized`."""
    if not hasattr(counts, "indptr"):
        return _compiled()[0](counts, total, sizes)
    data = _compiled()[1](counts.data, counts.indptr, total, sizes)
    return type(counts)((data, counts.indices, counts.indptr), shape=counts.shape)


@functools.cache
def _compiled() -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    def floats(values: Any) -> Any:
        return values if values.dtype in (jnp.float32, jnp.float64) else values.astype(jnp.float32)

    def as_before(made: Any, counts: Any) -> Any:
        return made.astype(counts.dtype) if jnp.issubdtype(counts.dtype, jnp.floating) else made

    def scale(sums: Any, total: Any) -> Any:
        return jnp.where(sums <= 0, 0, total / sums).astype(sums.dtype)

    def dense(counts: Any, total: Any, sizes: Any) -> Any:
        values = floats(counts)
        sums = values.sum(axis=1) if sizes is None else sizes.astype(values.dtype)
        return as_before(jnp.log1p(values * scale(sums, total)[:, None]), counts)

    def sparse(data: Any, indptr: Any, total: Any, sizes: Any) -> Any:
        values, num_rows = floats(data), len(indptr) - 1
        # what is stored beyond the last row is padding: zeros, which stay zeros whichever row they are counted to
        row = jnp.repeat(jnp.arange(num_rows), jnp.diff(indptr), total_repeat_length=len(data))
        sums = jax.ops.segment_sum(values, row, num_segments=num_rows) if sizes is None else sizes.astype(values.dtype)
        return as_before(jnp.log1p(values * scale(sums, total)[row]), data)

    return jax.jit(dense), jax.jit(sparse)
