"""Rows in the order that is the same at every world size."""

from __future__ import annotations

from rankwise.data.rows.ordered.loading import OrderedLoader

__all__ = ["OrderedLoader"]
