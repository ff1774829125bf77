"""Inputs of a collection: AnnData and MuData from files, stores and memory."""

from __future__ import annotations

from rankwise.data.rows.collection.inputs.columns import Column, UnitedColumn, as_text, unite_columns
from rankwise.data.rows.collection.inputs.inputs import Input, open_input
from rankwise.data.rows.collection.inputs.tables import Columnwise, RowsOfColumns, Table, spread_collections

__all__ = [
    "Column",
    "Columnwise",
    "Input",
    "RowsOfColumns",
    "Table",
    "UnitedColumn",
    "as_text",
    "open_input",
    "spread_collections",
    "unite_columns",
]
