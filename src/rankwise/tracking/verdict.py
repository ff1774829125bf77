"""Run a function on the main rank, and return its result on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rankwise.errors import RankwiseError, RunDirError

if TYPE_CHECKING:
    from rankwise.world import World

T = TypeVar("T")


def on_main(world: World, act: Callable[[], T]) -> T:
    """Call `act` on the main rank; return its value, or raise its error, on every rank. Every rank must call it.

    Raises:
        RankwiseError: the error of `act`; another exception is raised as RunDirError.
    """
    value: T | None = None
    error: RankwiseError | None = None
    if world.is_main:
        try:
            value = act()
        except RankwiseError as caught:
            error = caught
        except OSError as caught:
            error = RunDirError(f"the run directory cannot be used: {caught}; check path, permissions and free space")
            error.__cause__ = caught
        except Exception as caught:  # noqa: BLE001  (whatever it is, the other ranks wait to hear of it)
            error = RunDirError(f"the main rank failed: {type(caught).__name__}: {caught}")
            error.__cause__ = caught
    heard: tuple[T | None, RankwiseError | None] = world.broadcast_object((value, error))
    if error is not None or heard[1] is not None:
        raise error or heard[1]  # type: ignore[misc]
    return heard[0]  # type: ignore[return-value]
