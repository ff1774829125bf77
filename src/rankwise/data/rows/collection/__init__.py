"""Collections: making them, adding to them, describing them."""

from __future__ import annotations

from rankwise.data.rows.collection.collection import DatasetCollection
from rankwise.data.rows.collection.journal import clear_vain, where_it_stands
from rankwise.data.rows.collection.progress import watched_progress

__all__ = ["DatasetCollection", "clear_vain", "watched_progress", "where_it_stands"]
