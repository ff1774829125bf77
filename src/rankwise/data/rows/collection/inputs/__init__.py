"""Inputs of a collection: AnnData and MuData of files, stores and in memory."""

from __future__ import annotations

from rankwise.data.rows.collection.inputs.columnwise import Columnwise
from rankwise.data.rows.collection.inputs.opening import Input, open_input
from rankwise.data.rows.collection.inputs.spreading import spread_collections
from rankwise.data.rows.collection.inputs.tables import Table

__all__ = ["Columnwise", "Input", "Table", "open_input", "spread_collections"]
