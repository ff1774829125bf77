"""Processes that write a collection together."""

from __future__ import annotations

from rankwise.data.rows.collection.crew.crew import Crew, Seat, take_seat
from rankwise.data.rows.collection.crew.tasks import Marks, Task, work_off

__all__ = ["Crew", "Marks", "Seat", "Task", "take_seat", "work_off"]
