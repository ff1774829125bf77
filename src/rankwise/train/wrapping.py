"""`prepare`: a model on its rank's device, its replicas joined. The one place where the wrapping order is decided."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

__all__ = ["prepare", "refuse_strategies", "replicas_of", "seed_training", "unwrapped"]


def prepare(model: nn.Module, world: World | None = None, **ddp_options: Any) -> nn.Module:
    """Return the model on its rank's device, wrapped in DistributedDataParallel when there are several ranks.

    Device first, then the wrap: a model that is moved after the wrap loses its gradient hooks without a word.
    On one rank nothing is wrapped: the model itself comes back. Every rank of the world must call it (the wrap
    compares shapes and sends rank 0's weights to all).

    From then on the global generators of `random`, NumPy and torch differ between ranks, each seeded by (the world's
    seed, rank): otherwise all ranks would drop the same units and add the same noise. What must be equal on all ranks
    is drawn before, or from ``world.generator("what")``. A random state that is restored afterwards holds.

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
    refuse_strategies(model, world)
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
    if world.world_size == 1:
        return model
    if not any(p.requires_grad for p in model.parameters()):
        seed_training(world, "prepare")
        return model
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    wrapped: nn.Module = DistributedDataParallel(
        model, device_ids=device_ids, process_group=_group(world), **ddp_options
    )
    seed_training(world, "prepare")
    return wrapped


def _group(world: World) -> Any:
    """Return the world's process group, None for the default one."""
    return getattr(world.channel, "group", None)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel or DataParallel, or the module itself.

    Evaluation and checkpoints use it: a forward through the wrapper sends buffers around, so a rank that evaluates
    alone would leave the others waiting. A wrapper that torch.compile has taken in is looked through, too.
    """
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    wrappers = (DistributedDataParallel, nn.DataParallel)
    while True:
        inside: Any = getattr(model, "_orig_mod", None)
        if isinstance(inside, wrappers):
            model = inside
        if not isinstance(model, wrappers):
            return model
        model = model.module


def replicas_of(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that the model is, or that another wrapper holds; None without one."""
    from torch.nn.parallel import DistributedDataParallel

    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def refuse_strategies(model: nn.Module, world: World) -> None:
    """Refuse modules that spread their work in ways which the exact step does not know.

    Raises:
        ConfigError: the model holds nn.DataParallel, or on several ranks a sharded module.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model is a module of torch, got a {type(model).__name__}")
    for module in model.modules():
        if isinstance(module, nn.DataParallel):
            raise ConfigError(
                "nn.DataParallel computes on several devices inside one process, and rankwise runs one process for "
                "each device: pass the module inside it (model.module) and start one rank per device (rankwise run)"
            )
        if world.world_size > 1 and _is_sharded(module):
            raise ConfigError(
                f"a part of the model is sharded ({type(module).__name__}, by FSDP or fully_shard), and the exact step "
                "does not scale such gradients yet: pass the plain module, which is then replicated by "
                "DistributedDataParallel; a sharded one trains in a loop of your own, with torch alone"
            )


def _is_sharded(module: nn.Module) -> bool:
    """Whether it is a module of FSDP, of the first or second kind: none is where that is not imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return False
    kinds = tuple(getattr(fsdp, name) for name in ("FullyShardedDataParallel", "FSDPModule") if hasattr(fsdp, name))
    return isinstance(module, kinds)


def seed_training(world: World, *key: int | str) -> None:
    """Seed the global generators of this rank from (seed, key, rank).

    Models are built from equal seeds on all ranks; from the first step on each rank draws its own stream, otherwise
    all ranks would drop the same units and add the same noise.
    """
    import torch

    draws = world.generator("train", *key, world.rank).integers(0, 2**31, size=3)
    random.seed(int(draws[0]))
    np.random.seed(int(draws[1]))  # noqa: NPY002  (the legacy generator is what users' code draws from)
    torch.manual_seed(int(draws[2]))
