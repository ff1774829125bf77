"""From boxes to chunks: which chunks a request touches, where they lie, and which places they fill."""

from __future__ import annotations

from rankwise.data.store.plan.lookup import BoxPlan, ChunkTable, OddBox, TargetTable
from rankwise.data.store.plan.planner import make_plan, name_lacking

__all__ = ["BoxPlan", "ChunkTable", "OddBox", "TargetTable", "make_plan", "name_lacking"]
