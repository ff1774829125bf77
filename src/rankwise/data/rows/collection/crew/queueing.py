"""`TaskQueue`: which of many tasks can be done next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Note", "Task", "TaskQueue"]

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
