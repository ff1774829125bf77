"""Plans requests: the chunks that a request needs, their location, and the places that they fill."""

from __future__ import annotations

from rankwise.data.store.plan.planner import (
    BoxPlan,
    ChunkTable,
    PaddedBox,
    TargetTable,
    describe_missing,
    make_plan,
)

__all__ = ["BoxPlan", "ChunkTable", "PaddedBox", "TargetTable", "describe_missing", "make_plan"]
