"""Steps that all ranks take or none: an error of one becomes everybody's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rankwise.errors import CheckpointError, DesyncError, RankwiseError

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["take_together"]

T = TypeVar("T")


def take_together(world: World, what: str, act: Callable[[], T]) -> T:
    """Call `act` on every rank; if it fails anywhere, raise everywhere. Every rank must call it.

    Raises:
        RankwiseError: this rank's own failure; an error of another kind comes as CheckpointError.
        CheckpointError: another rank failed; it is named.
    """
    value: T | None = None
    error: BaseException | None = None
    try:
        value = act()
    except RankwiseError as caught:
        error = caught
    except OSError as caught:
        error = CheckpointError(
            f"{what} failed on rank {world.rank}: {caught}; check free space, limits and permissions there"
        )
        error.__cause__ = caught
    except Exception as caught:  # noqa: BLE001  (whatever it is, the other ranks wait to hear of it)
        error = CheckpointError(f"{what} failed on rank {world.rank}: {type(caught).__name__}: {caught}")
        error.__cause__ = caught
    try:
        world.raise_together(error)
    except DesyncError as desync:
        if error is not None or desync.differ:
            raise
        raise CheckpointError(f"{what} failed on another rank: {desync}") from desync
    return value  # type: ignore[return-value]
