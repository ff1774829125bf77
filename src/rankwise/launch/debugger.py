"""`breakpoint`: debug one rank while the others wait for it."""

from __future__ import annotations

import bdb
import os
import pdb  # noqa: T100  (it is what this file is about)
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise import vitals
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    from rankwise.world import World

_POLL_S = 0.2


def breakpoint(rank: int = 0, world: World | None = None) -> None:  # noqa: A001  (as torch.distributed.breakpoint)
    """Open a debugger at this call on one rank; the other ranks wait and count as alive.

    Every rank of the world must call it. Inspect with ``p``, ``pp``, ``up``, ``down``, ``interact``; ``c`` continues
    all ranks, ``q`` ends the run. Stepping is not possible: the other ranks would not step along. While others wait,
    neither the process group's timeout nor ``--hang-timeout`` applies; on a single rank ``--hang-timeout`` applies.

    Args:
        rank: the rank to debug; `rankwise run` forwards its own stdin to rank 0 only.
        world: default ``World.current()``.

    Raises:
        ConfigError: there is no such rank, or it has no input to read commands from; raised on every rank.
        bdb.BdbQuit: the user left the debugger with ``q``; raised on that rank.
    """
    from rankwise.world import World as _World

    world = _World.current() if world is None else world
    world.raise_together(_trouble(rank, world))
    if world.world_size == 1:
        _look(sys._getframe(1), rank)  # noqa: SLF001
        return
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
    # the call above increased the channel's call number, which is the same on all ranks and never used twice
    done = f"rankwise/breakpoint/{world.global_ranks}/{getattr(world.channel, 'calls', 0)}"
    if world.rank == rank:
        try:
            _look(sys._getframe(1), rank)  # noqa: SLF001
        finally:
            store.set(done, "")
        return
    while True:  # poll the store instead of a collective, which would hit the group's timeout
        vitals.beat(phase="breakpoint")
        if store.check([done]):
            return
        time.sleep(_POLL_S)


def _trouble(rank: int, world: World) -> ConfigError | None:
    if not 0 <= rank < world.world_size:
        return ConfigError(f"breakpoint(rank={rank}): this world of {world.world_size} has no such rank")
    if world.backend == "jax" and world.world_size > 1:
        return ConfigError("breakpoint needs the process group of bind(), but this world belongs to a JAX program")
    if world.rank != rank:
        return None
    try:
        found = os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        found = None
    if found is None or (stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev):
        return ConfigError(
            f"breakpoint(rank={rank}): this rank has no input to read commands from; `rankwise run` passes its own to "
            "rank 0 only, so use rank=0, or start with torchrun"
        )
    return None


def _look(frame: object, rank: int) -> None:
    debugger = pdb.Pdb()
    debugger.prompt = f"(rank {rank}) "
    debugger.reset()
    debugger.interaction(frame, None)  # type: ignore[arg-type]
    if debugger.quitting:
        raise bdb.BdbQuit
