"""`Task`: a piece of work that any process of a crew may do, and whose result stays when it is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.data.rows.collection.crew.crew import Crew, put_json

__all__ = ["Marks", "Task", "work_off"]

Note = Any  # JSON


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A piece of work.

    Attributes:
        name: its name, fit for a file.
        run: does it and returns what is to be noted; called again where a process was killed in it.
        needs: names of tasks of the same list that must be done before.
        rows: how much of the progress it makes.
    """

    name: str
    run: Callable[[], Note]
    needs: tuple[str, ...] = ()
    rows: float = 0.0


class Marks:
    """What is done: a file for each task, with what was noted.

    Args:
        folder: where they lie.
        shared: whether other processes make some too.
    """

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self._folder, self._shared = folder, shared
        folder.mkdir(parents=True, exist_ok=True)
        self._known: set[str] = set()
        self._look()

    def done(self, *, look: bool = False) -> set[str]:
        """Return the names of the tasks that are done, as far as is known, or after another look."""
        if look and self._shared:
            self._look()
        return self._known

    def note(self, name: str) -> Note:
        """Return what was noted."""
        return json.loads((self._folder / name).read_bytes())

    def put(self, name: str, note: Note) -> None:
        """Say that a task is done."""
        put_json(self._folder / name, note)
        self._known.add(name)

    def _look(self) -> None:
        # os.listdir, as there may be many and no paths are needed
        self._known |= {name for name in os.listdir(self._folder) if not name.startswith(".")}  # noqa: PTH208


def work_off(tasks: Sequence[Task], marks: Marks, crew: Crew, *, shown: Callable[[float], None]) -> None:
    """Do tasks together until all are done, whoever did them.

    Args:
        tasks: the same list in all processes; the first ones are done first.
        marks: what is done.
        crew: the processes.
        shown: told how many rows are done.

    Raises:
        DesyncError: another process failed, or is gone.
    """
    left = list(tasks)
    taken: set[str] = set()  # by us or by others
    while True:
        done = marks.done(look=True)
        shown(sum(task.rows for task in tasks if task.name in done))
        left = [task for task in left if task.name not in done]
        if not left:
            return
        crew.check()
        task = None
        for ready in left:
            if ready.name not in taken and all(name in done for name in ready.needs):
                taken.add(ready.name)
                if _claim(crew, ready.name):
                    task = ready
                    break
        if task is None:
            _wait_for_others(marks, crew)
        else:
            marks.put(task.name, task.run())


def _wait_for_others(marks: Marks, crew: Crew) -> None:
    count = len(marks.done())
    crew.wait_for(lambda: len(marks.done(look=True)) > count, "tasks of other ranks")


def _claim(crew: Crew, name: str) -> bool:
    """Whether the task is ours: the process that makes the file has it."""
    if crew.alone:
        return True
    folder = crew.folder / "claims"
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
