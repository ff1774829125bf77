"""For loops with an unwrapped model: averages over ranks, the device of a model, and moving an optimizer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError
from rankwise.train.models.sharding import is_sharded, shards_state
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn


def average_gradients(module: nn.Module, world: World | None = None) -> None:
    """Replace each gradient by its mean over the ranks; every rank calls it, after backward and before the step.

    A parameter with a gradient on some ranks only counts as zero on the others, and then has one on all. The
    mean over ranks equals the mean over samples only if all ranks have equally many: `ExactStep` uses weights.

    Args:
        module: the same on all ranks; not wrapped, because DistributedDataParallel already does this.
        world: default ``World.current()``.

    Raises:
        ConfigError: the parameters are sharded over ranks, or a gradient is sparse.
    """
    import torch

    world = joined_world(world, "average_gradients")
    _refuse_sharded(module, "average_gradients")
    parameters = [p for p in module.parameters() if p.requires_grad]
    sparse = any(p.grad is not None and p.grad.is_sparse for p in parameters)
    world.raise_together(ConfigError("average_gradients does not support sparse gradients") if sparse else None)
    if world.world_size == 1:
        return
    counts = world.all_reduce([int(p.grad is not None) for p in parameters])
    taking = [p for p, count in zip(parameters, counts, strict=True) if count]
    mine = [torch.zeros_like(p) if p.grad is None else p.grad for p in taking]
    means = world.all_reduce(mine, op="mean")
    for parameter, mean in zip(taking, means, strict=True):
        parameter.grad = mean


def average_parameters(module: nn.Module, world: World | None = None) -> None:
    """Replace each parameter, and each buffer of floats, by its mean over the ranks; every rank calls it.

    For training in which ranks step independently and synchronise now and then (local SGD). Counters and other integer
    buffers stay the rank's own.

    Args:
        module: the same on all ranks.
        world: default ``World.current()``.

    Raises:
        ConfigError: the parameters are sharded over ranks.
    """
    import torch

    world = joined_world(world, "average_parameters")
    _refuse_sharded(module, "average_parameters")
    if world.world_size == 1:
        return
    buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    mine = [*module.parameters(), *buffers]
    means = world.all_reduce([tensor.detach() for tensor in mine], op="mean")
    with torch.no_grad():
        for tensor, mean in zip(mine, means, strict=True):
            tensor.copy_(mean)


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a layer of the module uses statistics over the batch, which differ between ranks."""
    from torch import nn

    kind = nn.modules.batchnorm._BatchNorm  # noqa: SLF001  (the only common base)
    return any(isinstance(layer, kind) for layer in module.modules())


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module.

    Raises:
        ConfigError: it has neither parameters nor buffers, or they are on several devices.
    """
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) == 1:
        return devices.pop()
    found = ", ".join(sorted(map(str, devices))) or "no parameters and no buffers"
    raise ConfigError(f"device_of needs a module on one device, but this {type(module).__name__} has {found}")


def move_optimizer(optimizer: Any, device: torch.device | str | None = None) -> None:
    """Move the state of an optimizer, in place: after its model was moved, or a checkpoint was loaded elsewhere.

    Step counts that the optimizer keeps on the CPU stay there, as in torch.

    Args:
        optimizer: any torch optimizer.
        device: the target; None: move each state to the device of its parameter.

    Raises:
        ConfigError: each rank has only a part of the state.
    """
    if shards_state(optimizer):
        raise ConfigError("move_optimizer: the state of this optimizer is spread over ranks; move the model before it")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for parameter, state in optimizer.state.items():
        group = groups.get(id(parameter), {})
        stays = () if group.get("capturable") or group.get("fused") else ("step",)
        target = parameter.device if device is None else device
        for name, value in state.items():
            if name not in stays:
                state[name] = _moved(value, target)


def _moved(value: Any, device: torch.device | str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_moved(part, device) for part in value)
    return value


def _refuse_sharded(module: nn.Module, caller: str) -> None:
    if is_sharded(module):
        raise ConfigError(f"{caller}: the parameters are sharded over ranks (fully_shard), which averages them itself")
