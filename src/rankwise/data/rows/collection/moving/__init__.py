"""Rows on their way from inputs to datasets: packed, spilled into files, read back in another order."""

from __future__ import annotations

from rankwise.data.rows.collection.moving.buckets import Bucket, Buckets
from rankwise.data.rows.collection.moving.fields import Field
from rankwise.data.rows.collection.moving.text import Text

__all__ = ["Bucket", "Buckets", "Field", "Text"]
