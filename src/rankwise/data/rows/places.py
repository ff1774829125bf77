"""Resolves user input to stores and their selected rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import NDArray
from rankwise.data.rows.blockwise import row_dtype
from rankwise.data.rows.datasets import MemoryDataset, find_datasets, is_anndata, is_h5ad
from rankwise.errors import ConfigError

__all__ = ["NamedRows", "find_rows", "stacked_rows"]


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
    return tuple(_found(uri) for uri in named)


def stacked_rows(found: Sequence[NamedRows], sizes: Sequence[int]) -> NDArray | None:
    """Return the selected rows over all concatenated stores, sorted; None = all."""
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
