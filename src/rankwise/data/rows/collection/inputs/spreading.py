"""Collections among the inputs are their datasets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rankwise.data.rows.datasets import COLLECTION_TYPE, find_datasets
from rankwise.data.store.meta import STORES
from rankwise.data.store.meta.documents import resolve_place
from rankwise.errors import ConfigError

__all__ = ["spread_collections"]

_HDF5 = (".h5ad", ".h5mu", ".h5")


def spread_collections(sources: list[Any], folder: Path) -> list[tuple[Any, bool]]:
    """Return inputs one by one, and of each whether it is a dataset of a collection.

    Args:
        sources: paths, groups, AnnData.
        folder: the collection that they are added to.

    Raises:
        ConfigError: that collection is among them.
        DataError: a collection is empty.
    """
    return [one for source in sources for one in _spread(source, folder)]


def _spread(source: Any, folder: Path) -> list[tuple[Any, bool]]:
    if not isinstance(source, (str, os.PathLike)):
        return [(source, False)]
    place = resolve_place(source)
    if place.endswith(_HDF5) or ("://" not in place and not Path(place).is_dir()):
        return [(source, False)]
    node = STORES.node(place)
    if node is None or node.attributes.get("encoding-type") != COLLECTION_TYPE:
        return [(source, False)]
    if Path(place).resolve() == folder.resolve():
        raise ConfigError(
            f"{folder} is among its own inputs: leave it out to add the others, or pass reshuffle=True (--reshuffle) "
            "to bring its rows into one order with theirs"
        )
    return [(dataset, True) for dataset in find_datasets(source)]
