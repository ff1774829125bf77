"""Carries out plans: several threads read and decode slabs of chunks directly into the batch."""

from __future__ import annotations

from rankwise.data.store.execution.context import ReaderContext
from rankwise.data.store.execution.failures import warn_arrays, warn_lossy_conversion
from rankwise.data.store.execution.hints import advise_plans
from rankwise.data.store.execution.reads import read_plans, spread_rows
from rankwise.data.store.execution.threads import reading_threads

__all__ = [
    "ReaderContext",
    "advise_plans",
    "read_plans",
    "reading_threads",
    "spread_rows",
    "warn_arrays",
    "warn_lossy_conversion",
]
