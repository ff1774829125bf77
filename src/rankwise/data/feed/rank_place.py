"""The rank that a loader feeds, and the device of its batches."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rankwise._process.loader_worker import current_worker
from rankwise._process.place import Place, announced_place
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank, the number of ranks, and the device of its batches (None = NumPy arrays)."""

    rank: int
    world_size: int
    device: str | torch.device | jax.sharding.Sharding | None


def check_ranks(rank: int, world_size: int) -> None:
    """Refuse to share out steps in a process group other than the one that the loader was made for.

    Args:
        rank: of the loader, from `World.current()` when it was made.
        world_size: number of ranks at that time.

    Raises:
        ConfigError: rank or number of ranks has changed.
    """
    from rankwise.world.adopt import known_world

    world = None if current_worker() is not None else known_world()  # workers serve the rank that started them
    if world is not None and (world.rank, world.world_size) != (rank, world_size):
        raise ConfigError(
            f"this loader was made for rank {rank} of {world_size}, but this process is rank {world.rank} of "
            f"{world.world_size} of a process group that was made later: samples would be read twice or never. Create "
            "the loader after the group (inside `with rankwise.bind()`, after init_process_group, in "
            "Lightning's train_dataloader()); to keep it as it is pass world=, such as World.single()"
        )


def find_place(world: World | None, device: str | torch.device | jax.sharding.Sharding | None) -> RankPlace:
    """Return the place of a loader.

    Args:
        world: None = the current one; the launcher's variables if torch is neither loaded nor needed, nor JAX set up.
        device: "auto" = the world's device (NumPy arrays in a JAX program); any other value is used as given.

    Raises:
        MissingExtraError: a device was asked for and torch is not installed.
    """
    if world is None:
        from rankwise.world.adopt import current_world, known_world

        no_tensors = device is None or is_jax_target(device)
        # a process that has not loaded torch is in no process group: NumPy arrays need no import of torch
        if known_world() is None and (find_spec("torch") is None or (no_tensors and "torch" not in sys.modules)):
            if not no_tensors:
                raise MissingExtraError(
                    f"device={device!r} needs torch, which is not installed: pip install 'rankwise[train]', "
                    "or pass device=None for NumPy arrays and SciPy matrices, 'jax' for JAX"
                )
            said = announced_place(os.environ) or Place()
            return RankPlace(rank=said.rank, world_size=said.world_size, device=device)
        world = current_world()
    own = None if getattr(world, "backend", "") == "jax" else world.device
    chosen = own if isinstance(device, str) and device == "auto" else device
    return RankPlace(rank=world.rank, world_size=world.world_size, device=chosen)
