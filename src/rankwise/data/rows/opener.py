"""`open_rows`: rows out of whatever users have in hand."""

from __future__ import annotations

import os
from typing import Any

from rankwise.data.rows.chosen import first_matrix
from rankwise.data.rows.datasets import Dataset, is_anndata, open_dataset
from rankwise.data.rows.places import find_rows
from rankwise.data.rows.source import RowSource
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, DataError

__all__ = ["open_rows", "opened_rows"]

_OF_A_READER = ("cache", "threads")


def open_rows(collection: Any, **options: Any) -> RowSource:
    """Return the rows of a collection.

    Args:
        collection: a `DatasetCollection`, folder or URL of a collection or AnnData store, h5ad file, AnnData in memory,
            `RowSource`, or a list of these.
        **options: of `RowSource`; what is left out is X, or where there is none the first matrix by name; of a source
            what it reads already.

    Raises:
        ConfigError: an option makes no sense, or cannot be changed any more.
        DataError: there is no store.
    """
    if not isinstance(collection, RowSource):
        if "matrices" not in options and not options.get("obs"):
            options["matrices"] = _default_matrices(collection)
        return RowSource(collection, **options)
    fixed = [name for name in _OF_A_READER if name in options]
    if fixed:
        raise ConfigError(f"a RowSource was opened with its own {', '.join(fixed)}: give it to RowSource(...) instead")
    return collection.reading(**options) if options else collection


def _default_matrices(collection: Any) -> tuple[str, ...]:
    with BoxReader(cache=0) as reader:
        dataset = open_dataset(find_rows(collection)[0].places[0], reader)
        name, _ = first_matrix(dataset)
        if name != "X" and isinstance(dataset, Dataset) and dataset.has_x:
            try:
                dataset.matrix("X")
            except DataError as error:  # another matrix in its place would be other numbers
                others = f"; {name} can be read: matrices=[{name!r}]" if name is not None else ""
                raise DataError(f"{error}{others}") from error
    return ("X",) if name is None else (name,)


def opened_rows(samples: Any) -> RowSource | None:
    """Return the rows that an order may be made of; None of what names no rows."""
    if isinstance(samples, RowSource):
        return samples
    named = samples if isinstance(samples, (list, tuple)) else [samples]
    if not named or not all(_names_rows(one) for one in named):
        return None
    # an order counts rows: which of the stores' matrices and variables are read is the loader's business
    with BoxReader(cache=0) as reader:
        name, _ = first_matrix(open_dataset(find_rows(samples)[0].places[0], reader))
    return open_rows(samples, matrices=("X",) if name is None else (name,), genes=...)


def _names_rows(one: Any) -> bool:
    return isinstance(one, (str, os.PathLike)) or hasattr(type(one), "stored_rows") or is_anndata(one)
