"""Find the world that this process is in already."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from rankwise.world.channel import Channel
from rankwise.world.value import World

__all__ = ["current_world", "remember"]

_bound: World | None = None
_adopted: tuple[Any, World] | None = None


def remember(world: World | None) -> None:
    """Record the world that `bind` made, or that it is gone."""
    global _bound  # noqa: PLW0603  (a process has one bound world)
    _bound = world


def current_world() -> World:
    """See `World.current`."""
    global _adopted  # noqa: PLW0603  (a process has one default group)
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return _bound or World.single()
    group = dist.group.WORLD
    if _bound is not None and _bound.channel is not None and _bound.channel.group is group:
        return _bound
    if _adopted is None or _adopted[0] is not group:
        rank, size = dist.get_rank(), dist.get_world_size()
        world = World(
            rank=rank,
            world_size=size,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
            node_rank=int(os.environ.get("GROUP_RANK", 0)),
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
            device=torch.device("cpu"),
            backend=dist.get_backend(),
            seed=1889,
            threads=torch.get_num_threads(),
            global_ranks=tuple(range(size)),
            channel=Channel(group, timedelta(seconds=600)),
        )
        _adopted = (group, world)
    return _adopted[1]
