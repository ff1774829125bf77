"""Operations that succeed on all ranks or on none: an error of one rank is raised on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rankwise.errors import CheckpointError, DesyncError, RankwiseError

if TYPE_CHECKING:
    from rankwise.world import World

T = TypeVar("T")


def call_together(world: World, what: str, act: Callable[[], T]) -> T:
    """Call `act` on every rank; if it fails anywhere, raise everywhere. Every rank must call it.

    Raises:
        RankwiseError: this rank's own failure; other errors become CheckpointError.
        CheckpointError: another rank failed; the message names it.
    """
    value, error = _try(world, what, act)
    try:
        world.raise_together(error)
    except DesyncError as desync:
        if error is not None or desync.differ:
            raise
        raise CheckpointError(f"{what} failed on another rank: {desync}") from desync
    return value  # type: ignore[return-value]


def gather_together(world: World, what: str, act: Callable[[], T]) -> list[T]:
    """Call `act` on every rank and return all results, by rank; if it fails anywhere, raise everywhere.

    One collective instead of two for `call_together` and a gather. Every rank must call it.

    Raises:
        RankwiseError, CheckpointError: see `call_together`.
    """
    value, error = _try(world, what, act)
    answers = world.all_gather_object((value, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    failed = "; ".join(f"rank {rank}: {said}" for rank, (_, said) in enumerate(answers) if said is not None)
    if failed:
        raise CheckpointError(f"{what} failed on another rank: {failed}")
    return [answer for answer, _ in answers]


def _try(world: World, what: str, act: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of `act`, or the error to raise."""
    error: Exception
    try:
        return act(), None
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
    return None, error
