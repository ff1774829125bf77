"""Batches of observations from on-disk AnnData collections, and writing such collections.

Each name is imported on first use: reading does not import the code for writing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise._lazy import door
from rankwise.data.order.layout import add_opener

__all__ = [
    "DatasetCollection",
    "Loader",
    "Log1pCounts",
    "OrderedLoader",
    "RowSource",
    "describe_rows",
    "log1p_cpm",
    "log1p_normalized",
    "verify_rows",
    "write_sharded",
]

if TYPE_CHECKING:
    from rankwise.data.rows.collection.collection import DatasetCollection
    from rankwise.data.rows.inspection.description import describe_rows
    from rankwise.data.rows.inspection.verification import verify_rows
    from rankwise.data.rows.loader.loader import Loader
    from rankwise.data.rows.ordered import OrderedLoader
    from rankwise.data.rows.output.sharded import write_sharded
    from rankwise.data.rows.source import RowSource
    from rankwise.data.rows.transforms import Log1pCounts, log1p_cpm, log1p_normalized
else:
    _TRANSFORMS = dict.fromkeys(("Log1pCounts", "log1p_cpm", "log1p_normalized"), "rankwise.data.rows.transforms")
    __getattr__, __dir__ = door(
        __name__,
        {
            "DatasetCollection": "rankwise.data.rows.collection.collection",
            "Loader": "rankwise.data.rows.loader.loader",
            "OrderedLoader": "rankwise.data.rows.ordered",
            "RowSource": "rankwise.data.rows.source",
            "describe_rows": "rankwise.data.rows.inspection.description",
            "verify_rows": "rankwise.data.rows.inspection.verification",
            "write_sharded": "rankwise.data.rows.output.sharded",
            **_TRANSFORMS,
        },
        submodules=("abc", "samplers", "types"),
    )


def _opened(samples: Any) -> Any:
    from rankwise.data.rows.ordered import opened_rows

    return opened_rows(samples)


add_opener(_opened)  # importing this package lets orders open its stores
