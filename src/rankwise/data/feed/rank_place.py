"""The rank that a loader feeds, and the device of its batches."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rankwise._process.place import Place, announced_place
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import MissingExtraError

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
