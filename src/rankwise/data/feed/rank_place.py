"""Which rank a loader feeds, and where its batches go."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from rankwise.world import World

__all__ = ["RankPlace", "find_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank among how many, and its device (None = NumPy arrays)."""

    rank: int
    world_size: int
    device: str | torch.device | None


def find_place(world: World | None, device: str | torch.device | None) -> RankPlace:
    """Return the place of a loader.

    Args:
        world: the world; None = the current one. Without torch, and without `World.init_jax`, there is one rank.
        device: "auto" = the world's device; in a JAX program, whose device is not torch's, NumPy arrays.

    Raises:
        MissingExtraError: a device was asked for and torch is not installed.
    """
    if world is None:
        from rankwise.world.adopt import current_world, known_world

        if device is None and find_spec("torch") is None and known_world() is None:
            return RankPlace(rank=0, world_size=1, device=None)
        world = current_world()
    own = None if getattr(world, "backend", "") == "jax" else world.device
    chosen = own if isinstance(device, str) and device == "auto" else device
    return RankPlace(rank=world.rank, world_size=world.world_size, device=chosen)
