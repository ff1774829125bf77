"""`prepare`: a model on its rank's device, its replicas joined. The one place where the wrapping order is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    from torch import nn

__all__ = ["prepare", "unwrapped"]


def prepare(model: nn.Module, world: World | None = None, **ddp_options: Any) -> nn.Module:
    """Return the model on its rank's device, wrapped in DistributedDataParallel when there are several ranks.

    Device first, then the wrap: a model that is moved after the wrap loses its gradient hooks without a word.
    On one rank nothing is wrapped: the model itself comes back. Every rank of the world must call it (the wrap
    compares shapes and sends rank 0's weights to all).

    Args:
        model: the module, not wrapped yet.
        world: this rank's world; `World.current()` if None.
        **ddp_options: passed on to DistributedDataParallel (``find_unused_parameters=``, ``bucket_cap_mb=``, ...).
            `device_ids` and `output_device` are decided here.

    Raises:
        ConfigError: the model is wrapped already, or an option is decided here, or unknown to DistributedDataParallel.
    """
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    world = joined_world(world, "prepare")
    if world.backend == "jax":
        raise ConfigError(
            "prepare wraps a module of torch, and this world, of a JAX program (World.init_jax), has no group of "
            "torch's: enter rankwise.bind() first and call world.init_jax() inside it, to have both"
        )
    if unwrapped(model) is not model:
        raise ConfigError(f"prepare wants a plain module, got a {type(model).__name__}: pass the module inside it")
    decided = sorted({"device_ids", "output_device", "process_group", "module"} & set(ddp_options))
    if decided:
        raise ConfigError(f"prepare decides {', '.join(decided)} from the world; leave them out")
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    unknown = sorted(set(ddp_options) - set(known))
    if unknown:
        raise ConfigError(f"DistributedDataParallel has no option {', '.join(unknown)}; it has {', '.join(known)}")
    model = model.to(world.device)
    if world.world_size == 1 or not any(p.requires_grad for p in model.parameters()):
        return model
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    wrapped: nn.Module = DistributedDataParallel(
        model, device_ids=device_ids, process_group=_group(world), **ddp_options
    )
    return wrapped


def _group(world: World) -> Any:
    """Return the world's process group, None for the default one."""
    return getattr(world.channel, "group", None)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel or DataParallel, or the module itself.

    Evaluation and checkpoints use it: a forward through the wrapper sends buffers around, so a rank that evaluates
    alone would leave the others waiting.
    """
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    while isinstance(model, DistributedDataParallel | nn.DataParallel):
        model = model.module
    return model
