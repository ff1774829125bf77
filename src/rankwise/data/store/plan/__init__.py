"""From boxes to chunks: which chunks a request touches, where they lie, and which places they fill."""

from __future__ import annotations

from rankwise.data.store.plan.lacking import name_lacking
from rankwise.data.store.plan.planning import make_plan
from rankwise.data.store.plan.tables import BoxPlan, ChunkTable, OddBox, TargetTable

__all__ = ["BoxPlan", "ChunkTable", "OddBox", "TargetTable", "make_plan", "name_lacking"]
