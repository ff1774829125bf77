"""The collectives of a world (first slice: objects through torch.distributed)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise.errors import DesyncError
from rankwise.world.channel import Channel
from rankwise.world.value import World


def barrier(world: World) -> None:
    all_gather_object(world, None)


def all_gather_object(world: World, obj: Any) -> list[Any]:
    import torch.distributed as dist

    if world.channel is None:
        return [obj]
    out: list[Any] = [None] * world.world_size
    dist.all_gather_object(out, obj, group=world.channel.group)
    return out


def broadcast_object(world: World, obj: Any, src: int = 0) -> Any:
    return all_gather_object(world, obj)[src]


def gather_object(world: World, obj: Any, dst: int = 0) -> list[Any] | None:
    found = all_gather_object(world, obj)
    return found if world.rank == dst else None


broadcast = broadcast_object
gather = gather_object


def all_gather(world: World, tree: Any, *, grad: bool = False) -> list[Any]:
    return all_gather_object(world, tree)


def _zip(fn: Callable[[list[Any]], Any], trees: list[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {k: _zip(fn, [t[k] for t in trees]) for k in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_zip(fn, list(parts)) for parts in zip(*trees, strict=True))
    return fn(trees)


def all_reduce(world: World, tree: Any, op: str = "sum") -> Any:
    def fold(leaves: list[Any]) -> Any:
        import torch

        total = leaves[0]
        for leaf in leaves[1:]:
            if op in ("sum", "mean"):
                total = total + leaf
            elif isinstance(leaf, torch.Tensor):
                total = torch.minimum(total, leaf) if op == "min" else torch.maximum(total, leaf)
            elif isinstance(leaf, np.ndarray):
                total = np.minimum(total, leaf) if op == "min" else np.maximum(total, leaf)
            else:
                total = min(total, leaf) if op == "min" else max(total, leaf)
        return total / len(leaves) if op == "mean" else total

    return _zip(fold, all_gather_object(world, tree))


def reduce(world: World, tree: Any, op: str = "sum", dst: int = 0) -> Any:
    found = all_reduce(world, tree, op)
    return found if world.rank == dst else None


def raise_together(world: World, error: BaseException | None) -> None:
    found = all_gather_object(world, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = tuple(rank for rank, text in enumerate(found) if text is not None)
    if failed:
        raise DesyncError("; ".join(f"rank {rank}: {found[rank]}" for rank in failed), ranks=failed)


def subgroup(world: World, ranks: Sequence[int]) -> World | None:
    import dataclasses

    import torch.distributed as dist

    if world.channel is None:
        return world
    members = [world.global_ranks[r] for r in ranks]
    group = dist.new_group(members, timeout=world.channel.timeout)
    if world.rank not in ranks:
        return None
    return dataclasses.replace(
        world,
        rank=list(ranks).index(world.rank),
        world_size=len(ranks),
        global_ranks=tuple(members),
        channel=Channel(group, world.channel.timeout),
    )
