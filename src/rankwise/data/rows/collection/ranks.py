"""The ranks that write one collection together: who they are, and how an error of one ends all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rankwise.data.rows.collection.journal import locked, note_failure
from rankwise.errors import DesyncError, WorldError
from rankwise.world.adopt import known_world
from rankwise.world.place import Place

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["Ranks", "joined_ranks"]

T = TypeVar("T")


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
        yield Ranks(known_world() if world is None else world)
        return
    known = known_world()
    if world.world_size == 1 or (
        known is not None and (known.rank, known.world_size) == (world.rank, world.world_size)
    ):
        yield Ranks(None if world.world_size == 1 else known)
        return
    from rankwise.world.store_channel import store_world

    with store_world(world) as made:
        yield Ranks(made)
