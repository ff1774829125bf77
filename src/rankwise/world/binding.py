"""`bind`: find the place, pick the device, join the group, and leave it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

from rankwise.world import adopt
from rankwise.world.value import World

__all__ = ["bind"]


@contextlib.contextmanager
def bind(
    *,
    device: str = "auto",
    backend: str | None = None,
    seed: int = 1889,
    timeout: timedelta | float = 600.0,
    threads: int | None = None,
    allow_shared_device: bool = False,
    always_group: bool = False,
) -> Iterator[World]:
    """Find this process's place, join the group and yield the world (first slice: torchrun's variables, CPU)."""
    import torch
    import torch.distributed as dist

    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and not always_group:
        world = World.single(seed=seed)
    else:
        if size > 1:
            dist.init_process_group("gloo", timeout=timedelta(seconds=600))
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        world = adopt.current_world()
    torch.manual_seed(seed)
    adopt.remember(world)
    try:
        yield world
    finally:
        adopt.remember(None)
        if dist.is_initialized():
            dist.destroy_process_group()
