"""The steps of a write, as lists of tasks."""

from __future__ import annotations

from rankwise.data.rows.collection.steps.contents import dataset_tasks, entries_of, spill_tasks, turn_tasks
from rankwise.data.rows.collection.steps.job import Job, name_tasks
from rankwise.data.rows.collection.steps.tables import skeleton_tasks

__all__ = ["Job", "dataset_tasks", "entries_of", "name_tasks", "skeleton_tasks", "spill_tasks", "turn_tasks"]
