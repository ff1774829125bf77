"""Inputs of a collection: AnnData and MuData from files, stores and memory."""

from __future__ import annotations

from rankwise.data.rows.collection.inputs.inputs import Input, open_input
from rankwise.data.rows.collection.inputs.tables import Columnwise, Table, Turned, spread_collections

__all__ = ["Columnwise", "Input", "Table", "Turned", "open_input", "spread_collections"]
