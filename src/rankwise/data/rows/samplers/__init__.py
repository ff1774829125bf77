"""Samplers of rows: shuffled, in order, by class, and each of them on several ranks."""

from __future__ import annotations

from rankwise.data.rows.samplers.chunks import RandomSampler, SequentialSampler
from rankwise.data.rows.samplers.classes import ClassSampler, WeightedClassSampler
from rankwise.data.rows.samplers.distributed import DistributedSampler

__all__ = ["ClassSampler", "DistributedSampler", "RandomSampler", "SequentialSampler", "WeightedClassSampler"]
