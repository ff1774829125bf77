"""Columns about the rows: as tensors with their categories, and as groups that a split keeps together."""

from __future__ import annotations

from rankwise.data.rows.obs.columns import ObsColumn, read_column
from rankwise.data.rows.obs.tables import RowGroups, join_tables, read_groups, read_tables

__all__ = ["ObsColumn", "RowGroups", "join_tables", "read_column", "read_groups", "read_tables"]
