"""Carries out plans: several threads read and decode slabs of chunks directly into the batch."""

from __future__ import annotations

from rankwise.data.store.execution.admission import Admission
from rankwise.data.store.execution.context import ReaderContext, ReaderStats, ScratchPool
from rankwise.data.store.execution.executor import Executor
from rankwise.data.store.execution.failures import warn_lossy_conversion, warn_lossy_conversions, warn_slow_arrays
from rankwise.data.store.execution.slabs import Serials, chunk_keys
from rankwise.data.store.execution.slow import SlowArrays
from rankwise.data.store.execution.threads import WorkCrew, reading_threads

__all__ = [
    "Admission",
    "Executor",
    "ReaderContext",
    "ReaderStats",
    "ScratchPool",
    "Serials",
    "SlowArrays",
    "WorkCrew",
    "chunk_keys",
    "reading_threads",
    "warn_lossy_conversion",
    "warn_lossy_conversions",
    "warn_slow_arrays",
]
