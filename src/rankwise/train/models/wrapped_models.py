"""Wrapped models: wrapping in DistributedDataParallel, unwrapping, and checks for the exact step."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import ConfigError
from rankwise.guard.check import replicas_in
from rankwise.train.models.sharding import prepared_as
from rankwise.world import World

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

Strategy = Literal["ddp", "zero1", "fsdp", "auto"]
CommHook = Literal["fp16", "bf16", "powersgd"] | Callable[..., Any] | tuple[Any, Callable[..., Any]]


def reduced_options(comm_hook: CommHook | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `fully_shard` for gradients in half precision during transit."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if comm_hook is None:
        return {}
    dtype = torch.float16 if comm_hook == "fp16" else torch.bfloat16
    return {"mp_policy": dataclasses.replace(options.get("mp_policy", MixedPrecisionPolicy()), reduce_dtype=dtype)}


def replicate(
    model: nn.Module, world: World, options: Mapping[str, Any], comm_hook: CommHook | None
) -> DistributedDataParallel:
    """Return a module on its rank's device as a replica."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    for module in model.modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            # torch averages a sparse gradient in place, in the memory of the dense one that goes on backward from there
            module.weight.register_hook(torch.clone)  # type: ignore[no-untyped-call]
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=device_ids, process_group=group_of(world), **options)
    if comm_hook is not None:
        state, hook = _hook(comm_hook, world)
        wrapped.register_comm_hook(state, hook)
    return wrapped


def _hook(comm_hook: CommHook, world: World) -> tuple[Any, Any]:
    """Return the state and the function of a communication hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    group = group_of(world)
    if comm_hook == "fp16":
        return group, default_hooks.fp16_compress_hook
    if comm_hook == "bf16":
        if world.device.type == "cuda":
            return group, default_hooks.bf16_compress_hook
        return group, lambda group, bucket: _reduce_in_bf16(group, bucket)  # noqa: PLW0108  (torch wants no annotations)
    if comm_hook == "powersgd":
        return powerSGD_hook.PowerSGDState(group), powerSGD_hook.powerSGD_hook
    return comm_hook if isinstance(comm_hook, tuple) else (None, comm_hook)


def _reduce_in_bf16(group: Any, bucket: Any) -> Any:
    """Like torch's own hook, which requires NCCL."""
    import torch
    import torch.distributed as dist

    buffer = bucket.buffer()
    halved = buffer.to(torch.bfloat16).div_(dist.get_world_size(group))
    future = dist.all_reduce(halved, group=group, async_op=True).get_future()
    return future.then(lambda done: buffer.copy_(done.value()[0]))


def group_of(world: World) -> Any:
    """Return the world's process group, None for the default one."""
    return getattr(world.channel, "group", None)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel or DataParallel, or the module itself.

    Evaluation and checkpoints use it: a forward pass through the wrapper broadcasts buffers, so a rank that evaluates
    alone would leave the others waiting. Wrappers inside torch.compile are removed, too.
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


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile, or the module itself."""
    inside: nn.Module = getattr(model, "_orig_mod", model)
    return inside


def finds_unused(model: nn.Module) -> bool:
    """Whether ranks may leave different parameters of a replicated or sharded model without a gradient."""
    replicas = replicas_in(model)
    if replicas is not None:
        return bool(replicas.find_unused_parameters)
    return prepared_as(model).find_unused


def refuse_strategies(model: nn.Module) -> None:
    """Refuse a model that is no module, or divides its work in a way that the exact step does not support.

    Raises:
        ConfigError: it is no module, or contains nn.DataParallel, a lazy module, or a module of the first FSDP.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise ConfigError(f"the model must be a torch.nn.Module, got {model!r}")
    fsdp = sys.modules.get("torch.distributed.fsdp")  # if it is not imported, there are none
    for name, module in model.named_modules():
        own = *module.parameters(recurse=False), *module.buffers(recurse=False)
        if any(isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)) for tensor in own):
            raise ConfigError(f"the module {name!r} has no parameters yet: run one batch through it before prepare")
        if isinstance(module, nn.DataParallel):
            raise ConfigError(
                "nn.DataParallel computes on several devices inside one process, but rankwise runs one process per "
                "device: pass the module inside it (model.module) and start one rank per device (rankwise run)"
            )
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            raise ConfigError(
                "a part of the model is a FullyShardedDataParallel (FSDP1), whose gradients the exact step does not "
                "support: use FSDP2, rankwise.prepare(model, world, strategy='fsdp')"
            )
