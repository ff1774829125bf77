"""Workers of Ray Train: Ray has created their process group before the user's function begins."""

from __future__ import annotations

import sys

__all__ = ["ray_device", "ray_made_the_group"]


def ray_made_the_group() -> bool:
    """Whether this process is a worker of Ray Train with Ray's process group; imports nothing."""
    ray_train, dist = sys.modules.get("ray.train"), sys.modules.get("torch.distributed")
    if ray_train is None or dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    try:
        context = ray_train.get_context()
        numbers = (context.get_world_rank(), context.get_world_size())
    except Exception:  # noqa: BLE001  (what Ray raises outside of a worker differs from version to version)
        return False
    return numbers == (dist.get_rank(), dist.get_world_size())


def ray_device() -> str:
    """Return the device that Ray has assigned to this worker."""
    from ray.train.torch import get_device

    return str(get_device())
