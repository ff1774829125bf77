"""An explicit list, cut among ranks: exactly once, sizes that differ by at most one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from rankwise.errors import ConfigError

__all__ = ["shard"]

How = Literal["contiguous", "strided"]


@overload
def shard(items: int, *, rank: int, world_size: int, how: How = ...) -> range: ...
@overload
def shard(items: Sequence[Any], *, rank: int, world_size: int, how: How = ...) -> Sequence[Any]: ...


def shard(items: int | Sequence[Any], *, rank: int, world_size: int, how: How = "contiguous") -> Sequence[Any]:
    """Return this rank's part of a list. Over all ranks every item appears once; sizes differ by at most one.

    Needs no communication. A part is empty when there are fewer items than ranks.

    Args:
        items: a number n for range(n), or anything that can be sliced (list, tuple, str, NumPy array, ...).
        rank: 0 <= rank < world_size.
        world_size: number of ranks.
        how: "contiguous" runs (neighbouring items share files and chunks), or "strided": rank, rank + world_size, ...

    Returns:
        A slice of `items`, so of the same type; a range if a number was given.

    Raises:
        ConfigError: the rank is not in the world, `how` is unknown, or `items` cannot be sliced.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"shard wants 0 <= rank < world_size, got rank {rank} of {world_size}")
    if how not in ("contiguous", "strided"):
        raise ConfigError(f'shard wants how to be "contiguous" or "strided", got {how!r}')
    whole = range(_count(items)) if isinstance(items, int) else items
    if not (hasattr(whole, "__len__") and hasattr(whole, "__getitem__")) or hasattr(whole, "keys"):
        raise ConfigError(f"shard wants a number or a sequence, got {type(items).__name__}: give list(...) of it")
    if how == "strided":
        return whole[rank::world_size]
    count = len(whole)
    return whole[rank * count // world_size : (rank + 1) * count // world_size]


def _count(items: int) -> int:
    if items < 0:
        raise ConfigError(f"shard wants a number of items >= 0, got {items}")
    return items
