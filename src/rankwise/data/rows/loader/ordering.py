"""`Loader(..., order=...)`: the ordered loader by the name that users know."""

from __future__ import annotations

from typing import Any

from rankwise.data.rows.loader.converting import check_library
from rankwise.data.rows.opening import open_rows
from rankwise.data.rows.ordered import OrderedLoader
from rankwise.errors import ConfigError

__all__ = ["make_ordered"]

_INSTEAD = {  # of arguments of samplers
    "batch_sampler": "the order decides which rows form a batch",
    "batch_size": "Order(..., batch_size=...) is that of all ranks together",
    "chunk_size": "the order mixes whole chunks of the store",
    "preload_nchunks": "Order(..., window=...) says how many chunks are mixed",
    "shuffle": 'orders shuffle; Order(..., kind="sequential") does not',
    "rng": "Order(..., seed=...)",
    "drop_last": 'Order(..., remainder="drop")',
    "return_index": "batch.ids are the rows",
    "preload_to_gpu": "device= says where batches go",
}
_OF_SOURCES = ("matrices", "obs", "genes", "dense", "dtype", "cache", "threads")


def _jax_target(device: Any, sharding: Any) -> Any:
    if not (isinstance(device, str) and device in ("auto", "jax")):
        raise ConfigError(
            f"to='jax' puts batches on JAX's default device or, with sharding=, on those of the sharding; got "
            f"device={device!r}: leave it out"
        )
    return "jax" if sharding is None else sharding


def make_ordered(collection: Any, /, *, order: Any, to: Any, **options: Any) -> OrderedLoader:
    """Return a loader of rows in an order.

    Args:
        collection: what the order was made of: a collection, its place, a list of these, or a `RowSource`.
        order: which rows form which step.
        to: None or "torch" as `device` says, which is None for NumPy and SciPy; "jax" for JAX arrays, of this process
            or with `sharding` global ones.
        **options: of `OrderedLoader`, and of `RowSource`: `matrices`, `obs`, `genes`, `dense`, `dtype`, `cache`
            and `threads`.

    Raises:
        ConfigError: arguments of samplers were passed too, or the order was made of other rows.
    """
    passed = [name for name in options if name in _INSTEAD]
    if passed:
        raise ConfigError(
            f"Cannot specify {', '.join(passed)} with order=: leave it out; "
            + "; ".join(f"{name}: {_INSTEAD[name]}" for name in passed)
        )
    for name in ("transform", "batch_transform"):
        if options.get(name) is not None and not callable(options[name]):
            raise ConfigError(f"{name}= is a function, got {options[name]!r}")
    check_library(to)
    if to == "jax":
        options["device"] = _jax_target(options.get("device", "auto"), options.pop("sharding", None))
    elif options.pop("sharding", None) is not None:
        raise ConfigError("sharding= is for JAX arrays: pass to='jax' with it")
    if "rows" in options:
        raise ConfigError(
            "some of the rows are chosen once for order and loader: part = collection.subset(rows) (or "
            "RowSource(path).subset(rows)), Order(part, ...), Loader(part, order=...)"
        )
    chosen = {name: options.pop(name) for name in _OF_SOURCES if name in options}
    return OrderedLoader(open_rows(collection, **chosen), order=order, **options)
