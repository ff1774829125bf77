"""`OrderedLoader`: batches of rows in a given order, on this rank; and `open_rows`: opens rows from user input."""

from __future__ import annotations

import os
from typing import Any

from rankwise.data.contract import Order
from rankwise.data.feed import FeedLoader
from rankwise.data.rows.chosen import find_rows, first_matrix
from rankwise.data.rows.datasets.in_memory import is_anndata
from rankwise.data.rows.datasets.on_disk import Dataset, open_dataset
from rankwise.data.rows.loader.defaults import Library, check_library
from rankwise.data.rows.source import RowSource
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, DataError

_INSTEAD = {  # replacements for arguments of samplers
    "batch_sampler": "the order decides which rows form a batch",
    "batch_size": "Order(..., batch_size=...) sets the global batch size",
    "chunk_size": "the order mixes whole chunks of the store",
    "preload_nchunks": "Order(..., window=...) sets how many chunks are mixed",
    "shuffle": 'orders shuffle; Order(..., kind="sequential") does not',
    "rng": "Order(..., seed=...)",
    "drop_last": 'Order(..., remainder="drop")',
    "return_index": "batch.ids are the rows",
    "preload_to_gpu": "device= sets the device of batches",
}
_OF_SOURCES = ("matrices", "obs", "genes", "dense", "dtype", "cache", "threads")


class OrderedLoader(FeedLoader):
    """Batches of rows in the sequence of an order: the same at every world size, with a position that can be saved.

    ``batch["X"]`` is a ``torch.sparse_csr`` tensor for sparse rows, or SciPy's ``csr_matrix`` with ``device=None``.
    Each field lies in memory of the loader, which is reused only when no view is left. With JAX it is a ``BCSR``
    matrix; the number of stored elements is rounded up to few sizes, and all fields own their memory. `Log1pCounts` of
    dense rows on the CPU, for example `log1p_cpm`, runs on the reader thread, which makes the rows.

    Args:
        collection: what the order was made of: a collection, its path, a list of these, or a `RowSource`.
        order: which rows form which step.
        to: None or "torch": `device` decides, and device=None gives NumPy and SciPy; "jax": JAX arrays of this process,
            or with `sharding` global ones.
        sharding: with to="jax": ``jax.sharding.Sharding`` of global arrays of all ranks' rows.
        **options: of `FeedLoader`, and of `RowSource`: `matrices`, `obs`, `genes`, `dense`, `dtype`, `cache` and
            `threads`.

    Raises:
        ConfigError: arguments of samplers were passed, or the order was made for other rows.
        MissingExtraError: the library of `to` is not installed.
    """

    _more_options = _OF_SOURCES

    def __init__(
        self, collection: Any, /, *, order: Order, to: Library | None = None, sharding: Any = None, **options: Any
    ) -> None:
        passed = [name for name in options if name in _INSTEAD]
        if passed:
            raise ConfigError(
                f"Cannot specify {', '.join(passed)} with order=: omit it; "
                + "; ".join(f"{name}: {_INSTEAD[name]}" for name in passed)
            )
        if "rows" in options:
            raise ConfigError(
                "select rows once for both order and loader: part = collection.subset(rows) (or "
                "RowSource(path).subset(rows)), Order(part, ...), OrderedLoader(part, order=...)"
            )
        check_library(to)
        if to == "jax":
            device = options.get("device", "auto")
            if not (isinstance(device, str) and device in ("auto", "jax")):
                raise ConfigError(
                    f"to='jax' puts batches on JAX's default device or, with sharding=, on those of the sharding; got "
                    f"device={device!r}: omit device="
                )
            options["device"] = "jax" if sharding is None else sharding
        elif sharding is not None:
            raise ConfigError("sharding= is for JAX arrays: also pass to='jax'")
        chosen = {name: options.pop(name) for name in _OF_SOURCES if name in options}
        super().__init__(open_rows(collection, **chosen), order=order, **options)


def open_rows(collection: Any, **options: Any) -> RowSource:
    """Return the rows of a collection.

    Args:
        collection: a `DatasetCollection`, folder or URL of a collection or AnnData store, h5ad file, AnnData in memory,
            `RowSource`, or a list of these.
        **options: of `RowSource`; default: X, or the first matrix by name if there is no X; for a source, the
            fields that it reads already.

    Raises:
        ConfigError: an option is invalid, or cannot be changed any more.
        DataError: there is no store.
    """
    if not isinstance(collection, RowSource):
        if "matrices" not in options and not options.get("obs"):
            options["matrices"] = _default_matrices(collection, is_read=True)
        return RowSource(collection, **options)
    fixed = [name for name in ("cache", "threads") if name in options]
    if fixed:
        raise ConfigError(f"a RowSource was opened with its own {', '.join(fixed)}: pass it to RowSource(...) instead")
    return collection.reading(**options) if options else collection


def _default_matrices(collection: Any, *, is_read: bool) -> tuple[str, ...]:
    """Return the name of X, or of the first matrix; if it is read, an X that cannot be read is an error."""
    with BoxReader(cache=0) as reader:
        dataset = open_dataset(find_rows(collection)[0].places[0], reader)
        name, _ = first_matrix(dataset)
        if name != "X" and is_read and isinstance(dataset, Dataset) and dataset.has_x:
            try:
                dataset.matrix("X")
            except DataError as error:  # another matrix instead would give other numbers
                others = f"; {name} can be read: matrices=[{name!r}]" if name is not None else ""
                raise DataError(f"{error}{others}") from error
    return ("X",) if name is None else (name,)


def opened_rows(samples: Any) -> RowSource | None:
    """Return the rows over which an order may be made; None if the input does not name rows."""
    if isinstance(samples, RowSource):
        return samples
    named = samples if isinstance(samples, (list, tuple)) else [samples]
    if not named or not all(
        isinstance(one, (str, os.PathLike)) or hasattr(type(one), "stored_rows") or is_anndata(one) for one in named
    ):
        return None
    # an order only counts rows: the loader decides which matrices and variables are read
    return open_rows(samples, matrices=_default_matrices(samples, is_read=False), genes=...)
