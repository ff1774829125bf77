"""Observations out of on-disk AnnData collections as batches, and writing the collections."""

from __future__ import annotations

from rankwise.data.rows.collection import DatasetCollection
from rankwise.data.rows.loader import Loader
from rankwise.data.rows.ordered import OrderedLoader
from rankwise.data.rows.source import RowSource
from rankwise.data.rows.transforms import Log1pCounts, log1p_cpm, log1p_normalized
from rankwise.data.rows.writing import write_sharded

__all__ = [
    "DatasetCollection",
    "Loader",
    "Log1pCounts",
    "OrderedLoader",
    "RowSource",
    "log1p_cpm",
    "log1p_normalized",
    "write_sharded",
]
