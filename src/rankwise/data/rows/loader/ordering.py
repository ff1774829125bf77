"""`Loader(..., order=...)`: the ordered loader by the name that users know."""

from __future__ import annotations

from typing import Any

from rankwise.data.rows.ordered import OrderedLoader
from rankwise.data.rows.source import RowSource
from rankwise.errors import ConfigError

__all__ = ["make_ordered"]

_OF_SAMPLERS = (
    "batch_sampler", "chunk_size", "preload_nchunks", "shuffle", "return_index", "batch_size", "preload_to_gpu",
    "drop_last", "rng",
)  # fmt: skip


def make_ordered(rows: Any, *, order: Any, to: Any, **options: Any) -> OrderedLoader:
    """Return a loader of rows in an order.

    Args:
        rows: `RowSource` that the order was made for.
        order: which rows form which step.
        to: None or "torch"; with "jax" or for NumPy and SciPy pass device=None.
        **options: of `OrderedLoader`.

    Raises:
        ConfigError: arguments of samplers were passed too, or rows are something else.
    """
    passed = [name for name in options if name in _OF_SAMPLERS]
    if passed:
        raise ConfigError(
            f"Cannot specify {', '.join(passed)} with order=: the order decides which rows form a batch (its "
            "batch_size is that of all ranks together, a sampler's that of one rank); leave one of them out"
        )
    if not isinstance(rows, RowSource):
        raise ConfigError(
            f"order= wants the RowSource that it was made for, got {type(rows).__name__}: source = RowSource(path); "
            "Loader(source, order=Order(source, batch_size=...))"
        )
    if to not in (None, "torch"):
        raise ConfigError(f"with order= rows come as torch's tensors, or with device=None as NumPy's; got to={to!r}")
    return OrderedLoader(rows, order=order, **options)
