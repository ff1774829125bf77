"""The rank's side of `Wrapper`: bind, create the groups, call the task with ddpw's keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from rankwise.launch.platforms import Device, Platform

__all__ = ["run_task"]

_DEVICES = {Device.CPU: "cpu", Device.GPU: "cuda", Device.MPS: "mps"}


def run_task(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], platform: Platform) -> Any:
    """Call a task on this rank; every rank of the platform calls it.

    Args:
        fn: the task.
        args: its arguments.
        kwargs: its keyword arguments, before ddpw's are added.
        platform: as given to `Wrapper`.
    """
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    given = {**kwargs, "global_rank": rank, "local_rank": local_rank, "platform": platform}
    if platform.ipc_groups is None:
        _prepare_alone(platform, local_rank)
        return fn(*args, **given, group=None)
    from rankwise.world import bind

    with bind(
        device=_device(platform),
        backend=platform.backend,
        seed=platform.seed,
        timeout=platform.ipc_timeout_s,
        always_group=True,
    ) as world:
        if platform.verbose:
            print(f"rankwise: rank {rank} of {world.world_size} on {world.device}, {world.backend}", flush=True)  # noqa: T201
        return fn(*args, **given, group=_group_of(rank, platform))


def _device(platform: Platform) -> str:
    """Return the device to bind to; a Slurm job with GPUs never falls back to the CPU."""
    if platform.device is Device.SLURM:
        return "cuda" if platform.num_ranks is None else "auto"
    assert isinstance(platform.device, Device)
    return _DEVICES[platform.device]


def _group_of(rank: int, platform: Platform) -> Any:
    """Create every group, as torch requires of all ranks, and return the group of this rank."""
    import torch.distributed as dist

    mine = dist.group.WORLD
    for ranks in platform.ipc_groups or []:
        group = dist.new_group(ranks, timeout=timedelta(seconds=platform.ipc_timeout_s))
        if rank in ranks:
            mine = group
    return mine


def _prepare_alone(platform: Platform, local_rank: int) -> None:
    """Set seeds and device of a rank without a process group."""
    import torch

    from rankwise.world import seed_generators
    from rankwise.world.devices import choose_device, visible_devices

    seed_generators(platform.seed)
    device = choose_device(_device(platform), local_rank=local_rank, world_size=1, visible=visible_devices())
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
