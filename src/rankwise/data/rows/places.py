"""From what a user names to stores, and to the rows of them that are meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.blockwise import row_dtype
from rankwise.data.rows.datasets import HeldDataset, find_datasets, is_anndata, is_h5ad
from rankwise.errors import ConfigError

__all__ = ["NamedRows", "find_rows", "stacked_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRows:
    """One thing that was named: a store, a collection, or a source of some rows.

    Attributes:
        name: what it was called.
        places: its AnnData stores; AnnData in memory and h5ad files opened.
        rows: its rows, sorted; None = all.
    """

    name: str
    places: tuple[str | HeldDataset, ...]
    rows: NDArray | None = None


def find_rows(uris: Any) -> tuple[NamedRows, ...]:
    """Return what lies where URIs, collections and sources point, in their order.

    Args:
        uris: a folder or URL of an AnnData store or of a collection, an h5ad file, an AnnData, a `DatasetCollection`,
            a `RowSource`, or a list.

    Raises:
        ConfigError: nothing was named, or something else; or rows of a source are drawn.
        DataError: there is nothing.
    """
    named = list(uris) if isinstance(uris, (list, tuple)) else [uris]
    if not named:
        raise ConfigError("rows want at least one AnnData store or collection, got none")
    return tuple(_found(uri) for uri in named)


def stacked_rows(found: Sequence[NamedRows], sizes: Sequence[int]) -> NDArray | None:
    """Return the rows that are meant of all stores one over the other, sorted; None = all.

    Args:
        found: what was named.
        sizes: rows of the stores of each.
    """
    if all(one.rows is None for one in found):
        return None
    counts = [size if one.rows is None else len(one.rows) for one, size in zip(found, sizes, strict=True)]
    rows: NDArray = np.empty(sum(counts), dtype=row_dtype(sum(sizes)))
    first = at = 0
    for one, size, count in zip(found, sizes, counts, strict=True):
        rows[at : at + count] = np.arange(size, dtype=rows.dtype) if one.rows is None else one.rows
        rows[at : at + count] += first
        first, at = first + size, at + count
    return rows


def _found(uri: Any) -> NamedRows:
    if is_anndata(uri) or is_h5ad(uri):
        held = HeldDataset(uri)
        return NamedRows(name=held.place, places=(held,))
    if isinstance(uri, (str, os.PathLike)):
        return NamedRows(name=os.fspath(uri), places=find_datasets(uri))
    stored = getattr(uri, "stored_rows", None)  # of a RowSource, or a DatasetCollection
    if isinstance(stored, NamedRows):
        return stored
    raise ConfigError(
        "rows come from AnnData stores, collections and h5ad files, by place or as a DatasetCollection, and from "
        f"AnnData in memory; got {type(uri).__name__}: of a table or array make anndata.AnnData(...), of MuData write "
        "a collection (rankwise rows write --modality NAME); a Dataset of torch goes into "
        "rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )
