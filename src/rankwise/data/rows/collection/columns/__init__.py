"""Columns of observations: of one input, and of all together."""

from __future__ import annotations

from rankwise.data.rows.collection.columns.column import Column, ObsColumn, as_text, taken, unite_columns
from rankwise.data.rows.collection.columns.sources import columns_of_frame, index_of_frame, open_columns

__all__ = [
    "Column",
    "ObsColumn",
    "as_text",
    "columns_of_frame",
    "index_of_frame",
    "open_columns",
    "taken",
    "unite_columns",
]
