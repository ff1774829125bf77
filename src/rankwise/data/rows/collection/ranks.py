"""The ranks that write one collection: who they are, how they share its tasks, and how an error of one ends all."""

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

__all__ = ["Marks", "Note", "Ranks", "Task", "joined_ranks", "share_of", "work_off"]

T = TypeVar("T")
Note = Any  # JSON


class Ranks:
    """This process among those that write together; alone it needs no world.

    Args:
        world: of them, None = this process alone.
    """

    def __init__(self, world: World | None = None) -> None:
        self._world = None if world is None or world.world_size == 1 else world
        self.rank, self.size = (0, 1) if self._world is None else (self._world.rank, self._world.world_size)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that decides and publishes."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self._world is None

    def from_main(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` returns on the main one.

        Raises:
            WorldError: another rank failed, or is gone.
        """
        made = make() if self.is_main else None  # what it raises `together` tells the others
        if self._world is None:
            return made  # type: ignore[return-value]
        found: T = self._world.broadcast_object(made)
        return found

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank; raises as `from_main`."""
        return [value] if self._world is None else self._world.all_gather_object(value)

    @contextlib.contextmanager
    def together(self, work: Path) -> Iterator[None]:
        """Begin together and end together.

        Args:
            work: folder beside the collection, which the main process locks.

        Raises:
            DesyncError: another rank failed, or is gone.
            WorldError: the ranks cannot talk at all.
        """
        met = False
        try:
            with locked(work) if self.is_main else contextlib.nullcontext():
                self.gather(None)
                met = True
                yield
                # when all is written it does not matter to the main process how the others end
                with contextlib.suppress(WorldError) if self.is_main else contextlib.nullcontext():
                    self.gather(None)
        except WorldError as error:  # came out of a collective: all have heard it, or nobody can
            if met and not isinstance(error, DesyncError):
                raise DesyncError(str(error)) from error
            raise
        except BaseException as error:
            self._tell(work, error)
            raise

    def _tell(self, work: Path, error: BaseException) -> None:
        """Let the others, in whatever collective they wait, end with this error; it stays the one that is raised."""
        if self._world is None:
            return
        if not self.is_main:
            note_failure(work, error)
        told = error if isinstance(error, Exception) else WorldError(f"it was stopped by {type(error).__name__}")
        with contextlib.suppress(Exception):
            self._world.raise_together(told)


@contextlib.contextmanager
def joined_ranks(world: World | Place | None) -> Iterator[Ranks]:
    """Find who writes together.

    Args:
        world: the ranks; a place is enough where they have no process group. None = those of the process group that
            this process is in, else this process alone.

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
