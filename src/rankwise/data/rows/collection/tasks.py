"""The tasks of a writing: which are done, which rank does which of the others, and what came out of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rankwise.data.rows.collection.journal import put_json
from rankwise.data.rows.collection.ranks import Ranks

__all__ = ["Marks", "Note", "Task", "share_of", "work_off"]

Note = Any  # JSON

_ROUND_S = 5.0  # of work between two collectives: so long a failure of another rank goes unnoticed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A piece of work that any rank may do, and whose result stays when the rank is killed.

    Attributes:
        name: its name, fit for a file.
        run: does it and returns what is to be noted; called again where a process was killed in it.
        needs: names of tasks of the same list that must be done before.
        rows: how much of the progress it makes.
        num_bytes: how much it moves, for equal shares.
    """

    name: str
    run: Callable[[], Note]
    needs: tuple[str, ...] = ()
    rows: float = 0.0
    num_bytes: float = 0.0


class Marks:
    """What is done: a file for each task, and in memory what was noted, the same on all ranks.

    Args:
        folder: where the files lie.
        ranks: who writes.
    """

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder = folder
        self.notes: dict[str, Note] = ranks.from_main(self._found)

    def _found(self) -> dict[str, Note]:
        self._folder.mkdir(parents=True, exist_ok=True)
        names = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        return {path.name: json.loads(path.read_bytes()) for path in names}

    def put(self, name: str, note: Note) -> None:
        """Keep on disk that a task is done; the others hear of it at the end of the round."""
        put_json(self._folder / name, note)


def work_off(tasks: Sequence[Task], marks: Marks, ranks: Ranks, *, shown: Callable[[float], None]) -> None:
    """Do tasks together until all are done, in rounds at whose end the ranks tell each other what they have done.

    A round takes the next tasks that are ready, in their order; arithmetic shares them out. Rounds grow until they take
    some seconds, by the slowest rank: all know its time, and so all choose the same.

    Args:
        tasks: the same list on all ranks; the first ones are done first.
        marks: what is done.
        ranks: who writes.
        shown: told how many rows are done, of all ranks.

    Raises:
        WorldError: another rank failed, or is gone.
    """
    left, rows, count = {task.name: task for task in tasks}, 0.0, 1

    def settle(notes: Mapping[str, Note]) -> float:
        marks.notes.update(notes)
        return sum(left.pop(name).rows for name in notes)

    rows += settle({name: marks.notes[name] for name in left if name in marks.notes})
    shown(rows)
    while left:
        ready = (task for task in left.values() if all(name in marks.notes for name in task.needs))
        notes: dict[str, Note] = {}
        begun_s, more = time.monotonic(), 0.0
        for task in share_of(list(islice(ready, count * ranks.size)), ranks.rank, ranks.size):
            notes[task.name] = task.run()
            marks.put(task.name, notes[task.name])
            more += task.rows
            shown(rows + more)
        told = ranks.gather((notes, time.monotonic() - begun_s))
        rows += sum(settle(found) for found, _ in told)
        shown(rows)
        slowest_s = max(took_s for _, took_s in told)
        count = max(1, min(2 * count, int(count * _ROUND_S / max(slowest_s, 1e-6))))


def share_of(tasks: Sequence[Task], rank: int, size: int) -> list[Task]:
    """Return a rank's tasks, in their order: the largest is given first, each to who has least until then."""
    loads, owners = [(0.0, other) for other in range(size)], [0] * len(tasks)
    for at in sorted(range(len(tasks)), key=lambda at: -tasks[at].num_bytes):
        load, owner = min(loads)
        loads[owner], owners[at] = (load + max(1.0, tasks[at].num_bytes), owner), owner
    return [task for task, owner in zip(tasks, owners, strict=True) if owner == rank]
