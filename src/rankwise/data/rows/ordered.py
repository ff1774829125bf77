"""`OrderedLoader`: rows and an order to batches, on this rank and its device."""

from __future__ import annotations

from typing import Any

from rankwise.data.contract import Order
from rankwise.data.feed import RankLoader
from rankwise.data.rows.loader.defaults import Library, check_library
from rankwise.data.rows.opener import open_rows
from rankwise.errors import ConfigError

__all__ = ["OrderedLoader"]

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


class OrderedLoader(RankLoader):
    """Batches of rows as an order says: the same at every world size, with a position that can be saved.

    ``batch["X"]`` is a ``torch.sparse_csr`` tensor where rows are sparse, SciPy's ``csr_matrix`` with ``device=None``;
    it lies in the loader's memory until the next step, like every field. With JAX it is a ``BCSR`` matrix, with as many
    stored elements as a few sizes allow, and all fields have memory of their own. `Log1pCounts` of dense rows on the
    CPU, such as `log1p_cpm`, is done on the reader thread, where rows are made.

    Args:
        collection: what the order was made of: a collection, its place, a list of these, or a `RowSource`.
        order: which rows form which step.
        to: None or "torch" as `device` says, which is None for NumPy and SciPy; "jax" for JAX arrays, of this process
            or with `sharding` global ones.
        sharding: with to="jax": ``jax.sharding.Sharding`` of global arrays of all ranks' rows.
        **options: of `RankLoader`, and of `RowSource`: `matrices`, `obs`, `genes`, `dense`, `dtype`, `cache` and
            `threads`.

    Raises:
        ConfigError: arguments of samplers were passed too, or the order was made of other rows.
        MissingExtraError: the library of `to` is not installed.
    """

    def __init__(
        self, collection: Any, /, *, order: Order, to: Library | None = None, sharding: Any = None, **options: Any
    ) -> None:
        _check_options(options)
        check_library(to)
        if to == "jax":
            options["device"] = _jax_target(options.get("device", "auto"), sharding)
        elif sharding is not None:
            raise ConfigError("sharding= is for JAX arrays: pass to='jax' with it")
        chosen = {name: options.pop(name) for name in _OF_SOURCES if name in options}
        super().__init__(open_rows(collection, **chosen), order=order, **options)

    def __repr__(self) -> str:
        return f"OrderedLoader({len(self)} steps to the end of the epoch; {self.source!r})"


def _check_options(options: dict[str, Any]) -> None:
    passed = [name for name in options if name in _INSTEAD]
    if passed:
        raise ConfigError(
            f"Cannot specify {', '.join(passed)} with order=: leave it out; "
            + "; ".join(f"{name}: {_INSTEAD[name]}" for name in passed)
        )
    for name in ("transform", "batch_transform"):
        if options.get(name) is not None and not callable(options[name]):
            raise ConfigError(f"{name}= is a function, got {options[name]!r}")
    if "rows" in options:
        raise ConfigError(
            "some of the rows are chosen once for order and loader: part = collection.subset(rows) (or "
            "RowSource(path).subset(rows)), Order(part, ...), OrderedLoader(part, order=...)"
        )
