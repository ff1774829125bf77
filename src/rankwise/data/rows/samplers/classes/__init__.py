"""Rows drawn by their class."""

from __future__ import annotations

from rankwise.data.rows.samplers.classes.by_class import ClassSampler, WeightedClassSampler

__all__ = ["ClassSampler", "WeightedClassSampler"]
