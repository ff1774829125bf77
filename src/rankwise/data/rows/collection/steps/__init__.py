"""The steps of a writing, as lists of tasks."""

from __future__ import annotations

from rankwise.data.rows.collection.steps.closing import dataset_tasks, entries_of
from rankwise.data.rows.collection.steps.job import Job
from rankwise.data.rows.collection.steps.names import name_tasks
from rankwise.data.rows.collection.steps.skeletons import skeleton_tasks
from rankwise.data.rows.collection.steps.spilling import spill_tasks, turn_tasks

__all__ = ["Job", "dataset_tasks", "entries_of", "name_tasks", "skeleton_tasks", "spill_tasks", "turn_tasks"]
