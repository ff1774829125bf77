"""Batches of rows of datasets, drawn by a sampler."""

from __future__ import annotations

from rankwise.data.rows.loader.loader import Loader

__all__ = ["Loader"]
