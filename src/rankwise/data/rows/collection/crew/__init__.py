"""Processes that write a collection together."""

from __future__ import annotations

from rankwise.data.rows.collection.crew.crew import Crew
from rankwise.data.rows.collection.crew.queueing import Task
from rankwise.data.rows.collection.crew.seat import Seat, take_seat
from rankwise.data.rows.collection.crew.tasks import Marks, work_off

__all__ = ["Crew", "Marks", "Seat", "Task", "take_seat", "work_off"]
