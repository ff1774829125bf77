"""Which rank this process is, as its framework knows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from rankwise.errors import ConfigError, MissingExtraError, WorldError
from rankwise.world.adopt import bound_world

__all__ = ["DistInfo", "find_rank"]

DistInfo: TypeAlias = Literal["torch", "jax"] | Callable[[], tuple[int, int]]


def find_rank(dist_info: DistInfo) -> tuple[int, int]:
    """Return (rank, number of ranks).

    Raises:
        ConfigError: `dist_info` is something else, or it names a rank that there is not.
        WorldError: the framework has not been told yet.
        MissingExtraError: the framework is not installed.
    """
    known = {"torch": _torch, "jax": _jax}
    if not callable(dist_info) and dist_info not in known:
        raise ConfigError(
            f"dist_info wants 'torch', 'jax', or a function that returns (rank, ranks); got {dist_info!r}"
        )
    found = dist_info() if callable(dist_info) else known[dist_info]()
    rank, world_size = (int(value) for value in found)
    if not 0 <= rank < world_size:
        raise ConfigError(f"dist_info wants (rank, ranks) with 0 <= rank < ranks; got ({rank}, {world_size})")
    return rank, world_size


def _torch() -> tuple[int, int]:
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise MissingExtraError("dist_info='torch' needs torch: pip install 'rankwise[train]'") from error
    if not (dist.is_available() and dist.is_initialized()):
        raise WorldError(
            "torch.distributed is not initialized: enter rankwise.bind(), or call "
            "torch.distributed.init_process_group(), before making a DistributedSampler with dist_info='torch'"
        )
    return dist.get_rank(), dist.get_world_size()


def _jax() -> tuple[int, int]:
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("dist_info='jax' needs jax: pip install 'rankwise[jax]'") from error
    bound = bound_world()
    if not jax.distributed.is_initialized() and (bound is None or bound.backend != "jax"):
        raise WorldError(
            "JAX distributed is not initialized: call rankwise.World.init_jax() or jax.distributed.initialize() before "
            "making a DistributedSampler with dist_info='jax'"
        )
    return jax.process_index(), jax.process_count()
