"""Collections: making them, adding to them, describing them."""

from __future__ import annotations

from rankwise.data.rows.collection.collection import DatasetCollection
from rankwise.data.rows.collection.journal import clear_vain, unfinished_state
from rankwise.data.rows.collection.progress import watched_progress

__all__ = ["DatasetCollection", "clear_vain", "unfinished_state", "watched_progress"]
