"""Plans requests: the chunks that a request needs, their location, and the places that they fill."""

from __future__ import annotations

from rankwise.data.store.plan.lookup import BoxPlan, ChunkTable, PaddedBox, TargetTable
from rankwise.data.store.plan.planner import make_plan, name_lacking

__all__ = ["BoxPlan", "ChunkTable", "PaddedBox", "TargetTable", "make_plan", "name_lacking"]
