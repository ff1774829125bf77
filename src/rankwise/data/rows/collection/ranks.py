"""The ranks that write one collection: how they find each other, share tasks, and stop on an error of one rank."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankwise._process.place import Place
from rankwise.data.rows.collection.journal import locked, note_failure, put_json
from rankwise.errors import DesyncError, WorldError
from rankwise.world.adopt import group_world, known_world

if TYPE_CHECKING:
    from rankwise.world.value import World

T = TypeVar("T")
Note = Any  # JSON


class Ranks:
    """This process among those that write together; a single process has the world None."""

    def __init__(self, world: World | None = None) -> None:
        self._world = None if world is None or world.world_size == 1 else world
        self.rank, self.size = (0, 1) if self._world is None else (self._world.rank, self._world.world_size)

    @property
    def is_main(self) -> bool:
        """Whether this process decides and publishes."""
        return self.rank == 0

    def from_main(self, make: Callable[[], T]) -> T:
        """Return on every rank the result of `make` on the main rank.

        Raises:
            WorldError: another rank failed or has ended.
        """
        made = make() if self.is_main else None  # `together` sends an error to the others
        if self._world is None:
            return made  # type: ignore[return-value]
        found: T = self._world.broadcast_object(made)
        return found

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank; raises like `from_main`."""
        return [value] if self._world is None else self._world.all_gather_object(value)

    @contextlib.contextmanager
    def together(self, work: Path) -> Iterator[None]:
        """Begin and end together with the other ranks; the main process locks the work folder.

        Raises:
            DesyncError: another rank failed or has ended.
            WorldError: the ranks cannot communicate at all.
        """
        met = False
        try:
            with locked(work) if self.is_main else contextlib.nullcontext():
                self.gather(None)
                met = True
                yield
                # once all is written, the main process ignores how the others end
                with contextlib.suppress(WorldError) if self.is_main else contextlib.nullcontext():
                    self.gather(None)
        except WorldError as error:  # from a collective: all ranks have it, or none can be reached
            if met and not isinstance(error, DesyncError):
                raise DesyncError(str(error)) from error
            raise
        except BaseException as error:
            if not self.is_main:
                note_failure(work, error)
            if self._world is not None:  # the others, which wait in some collective, end with this error, too
                stopped = WorldError(f"it was stopped by {type(error).__name__}")
                with contextlib.suppress(Exception):
                    self._world.raise_together(error if isinstance(error, Exception) else stopped)
            raise


@contextlib.contextmanager
def joined_ranks(world: World | Place | None) -> Iterator[Ranks]:
    """Find the ranks that write together: those of a world, or of a place if they have no process group.

    None = this process's group, or this process alone.

    Raises:
        WorldError: the ranks of the place do not find each other.
    """
    if not isinstance(world, Place):
        yield Ranks(group_world() if world is None else world)
        return
    known = known_world()
    if known is not None and (known.rank, known.world_size) == (world.rank, world.world_size):
        yield Ranks(known)
        return
    if world.world_size == 1:
        yield Ranks()
        return
    from rankwise.world.store_channel import store_world

    with store_world(world) as made:
        yield Ranks(made)


_ROUND_S = 5.0  # of work between two collectives: a failure of another rank is noticed after this time


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A unit of work that any rank may do; its result stays when the rank is killed."""

    name: str  # its name, valid as a file name
    run: Callable[[], Note]  # does it and returns the note to keep; called again if a process was killed in it
    needs: tuple[str, ...] = ()  # names of tasks in the same list that must be done before
    rows: float = 0.0  # its part of the progress
    num_bytes: float = 0.0  # bytes moved, to balance the ranks


class Marks:
    """Finished tasks: a file for each, and in memory their notes, the same on all ranks."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder = folder
        if ranks.is_main:
            folder.mkdir(parents=True, exist_ok=True)
        self.notes: dict[str, Note] = ranks.from_main(
            lambda: {path.name: json.loads(path.read_bytes()) for path in folder.iterdir() if path.name[0] != "."}
        )

    def put(self, name: str, note: Note) -> None:
        """Record on disk that a task is done; other ranks get its note at the end of the round."""
        put_json(self._folder / name, note)


def run_tasks(tasks: Sequence[Task], marks: Marks, ranks: Ranks, *, shown: Callable[[float], None]) -> None:
    """Do all tasks together, in rounds; at the end of each round the ranks exchange what they have done.

    A round takes the next ready tasks in order and divides them by arithmetic alone. Its size adapts until the slowest
    rank takes some seconds; all ranks know that time, so all choose the same size.
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
    """Return a rank's tasks, in their order: the largest task first, each goes to the rank with the smallest load."""
    loads, owners = [(0.0, other) for other in range(size)], [0] * len(tasks)
    for at in sorted(range(len(tasks)), key=lambda at: -tasks[at].num_bytes):
        load, owner = min(loads)
        loads[owner], owners[at] = (load + max(1.0, tasks[at].num_bytes), owner), owner
    return [task for task, owner in zip(tasks, owners, strict=True) if owner == rank]
