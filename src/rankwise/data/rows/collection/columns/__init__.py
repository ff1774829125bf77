"""Columns of observations: of one input, and of all together."""

from __future__ import annotations

from rankwise.data.rows.collection.columns.column import Column, taken
from rankwise.data.rows.collection.columns.in_memory import columns_of_frame, index_of_frame
from rankwise.data.rows.collection.columns.stored import open_columns
from rankwise.data.rows.collection.columns.uniting import ObsColumn, as_text, unite_columns

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
