"""The tasks of a crew, and the order in which they are taken."""

from __future__ import annotations

import heapq
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.data.rows.collection.crew.crew import Crew, put_json

__all__ = ["Marks", "Note", "Task", "TaskQueue", "work_off"]

Note = Any  # JSON


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A piece of work that any process of a crew may do, and whose result stays when it is killed.

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


class TaskQueue:
    """Tasks that are not done, each offered once, when what it needs is done.

    Args:
        tasks: the first ones are offered first.

    Attributes:
        num_rows: rows of the tasks that are done.
        num_left: tasks that are not.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._places = {name: place for place, name in enumerate(self._tasks)}
        self._missing = {name: len(set(task.needs)) for name, task in self._tasks.items()}
        self._needed_by: dict[str, list[str]] = {}
        for name, task in self._tasks.items():
            for needed in set(task.needs):
                self._needed_by.setdefault(needed, []).append(name)
        self._ready = [(self._places[name], name) for name, count in self._missing.items() if not count]  # a heap
        self._done: set[str] = set()
        self.num_rows = 0.0

    @property
    def num_left(self) -> int:
        """Tasks that are not done."""
        return len(self._tasks) - len(self._done)

    def settle(self, names: Iterable[str]) -> None:
        """Take note of tasks that are done, of this list or others, perhaps told before."""
        for name in names:
            if name in self._done or name not in self._tasks:
                continue
            self._done.add(name)
            self.num_rows += self._tasks[name].rows
            for waiting in self._needed_by.get(name, ()):
                self._missing[waiting] -= 1
                if not self._missing[waiting]:
                    heapq.heappush(self._ready, (self._places[waiting], waiting))

    def __iter__(self) -> Iterator[Task]:
        """Offer the tasks that are ready; whoever takes one, it is not offered again."""
        while self._ready:
            _, name = heapq.heappop(self._ready)
            if name not in self._done:
                yield self._tasks[name]


_LOOK_S = 0.5  # between two looks at what others have done, while there is work


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
        self._news: list[str] = []
        self._look()

    def done(self, *, look: bool = False) -> set[str]:
        """Return the names of the tasks that are done, as far as is known, or after another look."""
        if look and self._shared:
            self._look()
        return self._known

    def news(self) -> list[str]:
        """Return the names that have become known since the last call."""
        told, self._news = self._news, []
        return told

    def note(self, name: str) -> Note:
        """Return what was noted."""
        return json.loads((self._folder / name).read_bytes())

    def put(self, name: str, note: Note) -> None:
        """Say that a task is done."""
        put_json(self._folder / name, note)
        self._learn({name})

    def _look(self) -> None:
        # os.listdir, as there may be many and no paths are needed
        self._learn({name for name in os.listdir(self._folder) if not name.startswith(".")})  # noqa: PTH208

    def _learn(self, names: set[str]) -> None:
        self._news += names - self._known
        self._known |= names


def work_off(tasks: Sequence[Task], marks: Marks, crew: Crew, *, shown: Callable[[float], None]) -> None:
    """Do tasks together until all are done, whoever did them.

    The time for choosing them grows with their number, not with its square: each is looked at when it is chosen and
    when it is done, and all marks are listed once in a while, or when there is nothing else to do.

    Args:
        tasks: the same list in all processes; the first ones are done first.
        marks: what is done.
        crew: the processes.
        shown: told how many rows are done.

    Raises:
        DesyncError: another process failed, or is gone.
    """
    queue = TaskQueue(tasks)
    queue.settle(marks.done(look=True))
    looked_s = time.monotonic()
    while True:
        queue.settle(marks.news())
        shown(queue.num_rows)
        if not queue.num_left:
            return
        crew.check()
        task = next((ready for ready in queue if _claim(crew, ready.name)), None)
        if task is None:
            _wait_for_others(marks, crew)
            continue
        marks.put(task.name, task.run())
        if time.monotonic() - looked_s > _LOOK_S:
            marks.done(look=True)
            looked_s = time.monotonic()


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
