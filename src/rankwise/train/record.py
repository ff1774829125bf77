"""What made a run: the part of its configuration that must match when it is resumed."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rankwise._version import __version__
from rankwise.data.contract import JSON, BatchLoader
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["environment_record", "run_record"]


def run_record(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    step_fn: Any,
    train: BatchLoader,
    world: World,
    options: Mapping[str, JSON],
    user: Mapping[str, JSON],
) -> dict[str, JSON]:
    """Return the configuration of a run: equal for the same command at any world size, different otherwise."""
    state = train.state_dict()
    order = getattr(train, "order", None)
    return {
        "model": _model_record(model),
        "optimizer": _optimizer_record(optimizer),
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "step_fn": getattr(step_fn, "__qualname__", type(step_fn).__name__),
        "seed": world.seed,
        "data": {
            "recipe": state.get("recipe"),
            "seed": state.get("seed"),
            "batch_size": getattr(order, "batch_size", None),
            "remainder": getattr(order, "remainder", None),
        },
        "train": dict(options),
        "user": dict(user),
    }


def environment_record(world: World) -> dict[str, JSON]:
    """Return where an attempt ran: recorded, not compared."""
    import numpy as np
    import torch

    return {
        "world_size": world.world_size,
        "num_nodes": world.num_nodes,
        "device": str(world.device),
        "backend": world.backend,
        "threads": torch.get_num_threads(),
        "host": platform.node(),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "rankwise": __version__,
    }


def _model_record(model: nn.Module) -> dict[str, JSON]:
    shapes = {name: [*p.shape, str(p.dtype)] for name, p in model.state_dict(keep_vars=True).items()}
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    return {
        "class": type(model).__name__,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "shapes": digest,
    }


def _optimizer_record(optimizer: torch.optim.Optimizer) -> dict[str, JSON]:
    groups = {f"group {index}": _plain_group(group) for index, group in enumerate(optimizer.param_groups)}
    return {"class": type(optimizer).__name__, **groups}


def _plain_group(group: Mapping[str, Any]) -> dict[str, JSON]:
    """Return the settings of a parameter group, without tensors; what a scheduler has already touched is left as is."""
    plain: dict[str, JSON] = {"num_tensors": len(group["params"])}
    for name, value in group.items():
        if name != "params" and isinstance(value, bool | int | float | str | tuple | list | None):
            plain[name] = json.loads(json.dumps(value))
    return plain
