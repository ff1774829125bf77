"""The rows that the user names: found, hashed, compared with those of an order, and their locality in chunks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rankwise.data.contract import IntArray, Locality, NDArray, Order, Samples
from rankwise.data.contract.values import short_hash
from rankwise.data.order.layout import WINDOW_BYTES
from rankwise.data.rows.datasets.in_memory import MemoryDataset, is_anndata, is_h5ad
from rankwise.data.rows.datasets.on_disk import AnyDataset
from rankwise.data.rows.datasets.search import find_datasets
from rankwise.data.rows.draws.weights import LEAST_LANES, MOST_LANES, DrawOptions
from rankwise.data.rows.matrices.matrix import MemoryMatrix, StoredMatrix
from rankwise.data.rows.matrices.stacks import MatrixStack
from rankwise.data.rows.obs import chosen_rows, num_stretches, row_dtype, taken
from rankwise.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRows:
    """One named input: a store, a collection, or a source with some rows."""

    name: str
    places: tuple[str | MemoryDataset, ...]  # its AnnData stores; AnnData in memory and h5ad files as opened datasets
    rows: NDArray | None = None  # its rows, sorted; None = all


def find_rows(uris: Any) -> tuple[NamedRows, ...]:
    """Return the content of URIs, collections and sources, in their order.

    Args:
        uris: a folder or URL of an AnnData store or of a collection, an h5ad file, an AnnData, a `DatasetCollection`,
            a `RowSource`, or a list.

    Raises:
        ConfigError: the list is empty or has other objects, or rows of a source are drawn.
        DataError: there is nothing at a URI.
    """
    named = list(uris) if isinstance(uris, (list, tuple)) else [uris]
    if not named:
        raise ConfigError("rows need at least one AnnData store or collection, got none")
    return tuple(_named(uri) for uri in named)


def _named(uri: Any) -> NamedRows:
    if is_anndata(uri) or is_h5ad(uri):
        held = MemoryDataset(uri)
        return NamedRows(name=held.place, places=(held,))
    if isinstance(uri, (str, os.PathLike)):
        return NamedRows(name=os.fspath(uri), places=find_datasets(uri))
    stored = getattr(uri, "stored_rows", None)  # a RowSource, or a DatasetCollection
    if isinstance(stored, NamedRows):
        return stored
    raise ConfigError(
        "rows are read from AnnData stores, collections and h5ad files, by path or as a DatasetCollection, and from "
        f"AnnData in memory; got {type(uri).__name__}: pass a table or array as anndata.AnnData(...), write MuData "
        "to a collection (rankwise rows write --modality NAME), and pass a torch Dataset to "
        "rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )


def first_matrix(dataset: AnyDataset) -> tuple[str | None, StoredMatrix | MemoryMatrix | None]:
    """Return the matrix that represents a dataset, with its name: X, or the first by name that has readable rows."""
    found = _opened(dataset, "X")
    if found is not None:
        return "X", found
    opened = ((name, _opened(dataset, name)) for name in sorted(dataset.matrices))
    return next(((name, matrix) for name, matrix in opened if matrix is not None), (None, None))


def _opened(dataset: AnyDataset, name: str) -> StoredMatrix | MemoryMatrix | None:
    try:
        return dataset.matrix(name)
    except (ConfigError, DataError):  # there is none, or it is stored by columns
        return None


def hash_rows(datasets: Sequence[AnyDataset], rows: NDArray | None) -> str:
    """Return a hash of the datasets' rows and of the selected ones; None = all.

    Of each dataset it covers the number of rows and the metadata of its `first_matrix`: equal for copies elsewhere.
    Other parts of a store may change without changing the order of its rows.
    """
    facts = []
    for dataset in datasets:
        name, matrix = first_matrix(dataset)
        facts.append((dataset.num_rows, name, None if matrix is None else matrix.fingerprint))
    return short_hash((short_hash(facts), None if rows is None else hashlib.sha256(rows.data).hexdigest()))


def stack_rows(
    named: Sequence[NamedRows], datasets: Sequence[AnyDataset], rows: Any
) -> tuple[IntArray, NDArray | None]:
    """Return the rows of all datasets concatenated, or some of them.

    Returns:
        int64[P + 1], the first row of each of `named`, and the end; and the selected rows, sorted, None = all.
    """
    before = np.cumsum([0, *(dataset.num_rows for dataset in datasets)], dtype=np.int64)
    edges: IntArray = before[np.cumsum([0, *(len(one.places) for one in named)])]
    if edges[-1] == 0:
        raise ConfigError(f"{datasets[0].place} has no rows")
    stacked: NDArray | None = None
    if any(one.rows is not None for one in named):
        sizes = np.diff(edges).tolist()
        counts = [size if one.rows is None else len(one.rows) for one, size in zip(named, sizes, strict=True)]
        stacked = np.empty(sum(counts), dtype=row_dtype(int(edges[-1])))
        at = 0
        for one, first, size, count in zip(named, edges.tolist()[:-1], sizes, counts, strict=True):
            stacked[at : at + count] = np.arange(size, dtype=stacked.dtype) if one.rows is None else one.rows
            stacked[at : at + count] += first
            at += count
    if rows is None:
        return edges, stacked
    chosen = chosen_rows(rows, int(edges[-1]) if stacked is None else len(stacked))
    return edges, chosen if stacked is None else taken(stacked, chosen)


S = TypeVar("S", bound=Samples)
_MEND = (
    "use the same rows in both: Order(collection, batch_size=...) and OrderedLoader(collection, order=...), or a part "
    "of a split in both places"
)


def bound_rows(rows: S, order: Order, drawn: Callable[[Any], S]) -> S:
    """Return the samples that an order counts: these rows, drawn if the order draws; `drawn` returns draws of them.

    Raises:
        ConfigError: the order was made for other rows, or for other draws.
    """
    wanted = order.fingerprint
    if wanted is None or wanted == rows.fingerprint:
        return rows
    wanted_rows, _, wanted_draws = str(wanted).partition("+")
    own_rows, _, own_draws = rows.fingerprint.partition("+")
    if wanted_rows != own_rows:
        raise ConfigError(
            f"the order is for other rows (fingerprint {wanted_rows}, {order.samples} samples an epoch) than the "
            f"loader's ({own_rows}, {rows.num_samples} samples): {_MEND}"
        )
    draw = order.draw
    if own_draws:
        said = "draws differently" if wanted_draws else "does not draw"
        raise ConfigError(
            f"the loader's rows are drawn, but the order {said}: make the order from the drawn rows, or pass balance=, "
            "weights=, mix=, num_samples= and together= to Order(...) alone"
        )
    if draw is None:
        raise ConfigError(f"the order draws rows in a way that it does not record (fingerprint {wanted}): {_MEND}")
    made = drawn(draw)
    if made.fingerprint != wanted:
        raise ConfigError(
            f"drawn by the order, these rows differ from the order's rows ({made.fingerprint}, not "
            f"{wanted}); the column {draw.balance!r} may have changed: create the order again"
        )
    return made


@dataclass(frozen=True, kw_only=True)
class RowLocality(Locality):
    """Locality of rows in the chunks of their matrices."""

    chunk_bytes: int  # average decoded bytes of the chunks that hold `chunk_samples` neighbouring rows
    mix_lanes: int | None  # lanes of a mix of collections; None = the order chooses

    @classmethod
    def of(
        cls,
        stacks: Sequence[MatrixStack],
        num_stored: int,
        rows: NDArray | None,
        options: DrawOptions | None,
        *,
        cache_bytes: int,
    ) -> RowLocality:
        """Return the locality of some of the stored rows, or of draws of them; rows of a chunk are read together."""
        chunk_samples = longest = min(num_stored, max((stack.chunk_rows for stack in stacks), default=1))
        mix = None if options is None else options.mix
        window_samples = None  # of the windows of all collections of a mix together
        if options is not None and mix is not None:
            window_samples = len(mix) * options.lanes * options.window * options.block_rows
        if options is not None:
            chunk_samples = options.together if mix is None else 1  # a mix already has an order
        elif rows is not None and longest > 1:  # average number of a subset's rows in one chunk
            chunk_samples = max(1, round(len(rows) / num_stretches(rows, longest)))
        return cls(
            chunk_samples=chunk_samples,
            chunk_bytes=max(1, round(longest * sum(stack.row_bytes for stack in stacks))),
            cache_bytes=cache_bytes,
            group_steps=True,
            order_kind=None if mix is None else "sequential",
            window_samples=window_samples,
            mix_lanes=None if options is None or mix is None else options.lanes,
        )

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return lanes for an order, so that its windows decode to at most 128 MiB; the order chooses the window.

        For a mix, both come from the mix.
        """
        if self.mix_lanes is not None:
            return self.mix_lanes, 1
        lanes = min(WINDOW_BYTES // self.chunk_bytes, batch_size)
        return int(np.clip(lanes, LEAST_LANES, MOST_LANES)), None
