"""Which rank a loader feeds, and where its batches go."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import MissingExtraError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World

__all__ = ["RankPlace", "find_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank among how many, and where its batches go (None = NumPy arrays)."""

    rank: int
    world_size: int
    device: str | torch.device | jax.sharding.Sharding | None


def find_place(world: World | None, device: str | torch.device | jax.sharding.Sharding | None) -> RankPlace:
    """Return the place of a loader.

    Args:
        world: the world; None = the current one. Without torch, and without `World.init_jax`, there is one rank.
        device: "auto" = the world's device (in a JAX program NumPy arrays); all else is taken as it is.

    Raises:
        MissingExtraError: a device was asked for and torch is not installed.
    """
    if world is None:
        from rankwise.world.adopt import current_world, known_world

        if find_spec("torch") is None and known_world() is None:
            if not (device is None or is_jax_target(device)):
                raise MissingExtraError(
                    f"device={device!r} gives tensors of torch, which is not installed: pip install 'rankwise[train]', "
                    "or pass device=None for NumPy arrays and SciPy matrices, 'jax' for JAX"
                )
            return RankPlace(rank=0, world_size=1, device=device)
        world = current_world()
    own = None if getattr(world, "backend", "") == "jax" else world.device
    chosen = own if isinstance(device, str) and device == "auto" else device
    return RankPlace(rank=world.rank, world_size=world.world_size, device=chosen)
