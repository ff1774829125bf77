"""Checks of loaders, models, optimizers and schedulers for the exact step and the trainer."""

from __future__ import annotations

import inspect
import logging
import weakref
from typing import TYPE_CHECKING, Any

from rankwise.checkpoint.parts import plain_name
from rankwise.data.contract import BaseLoader, num_micro_batches, share_sizes, whole_speeds
from rankwise.errors import ConfigError
from rankwise.guard.check import replicas_in
from rankwise.guard.findings import listed
from rankwise.train.models.sharding import check_sharded, is_sharded, prepared_as, shards_state
from rankwise.train.models.wrapped_models import refuse_strategies, unwrapped
from rankwise.train.step.schedules import BySamples
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

_LOG = logging.getLogger("rankwise.train")
_said: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[str]] = weakref.WeakKeyDictionary()


def lone_sample(train: BaseLoader, world: World, limit_steps: int | None, balance: Any = None) -> str:
    """Return which step leaves some rank a single sample, according to the order; "" if there is none.

    Args:
        train: the loader.
        world: this rank's world.
        limit_steps: largest number of steps.
        balance: speeds of the ranks by which the steps will be cut; None and "speed": as the loader cuts now.

    Raises:
        ConfigError: there is not one speed for each rank.
    """
    order = train.order
    if order is None or not order.batch_size:
        return ""
    batch_size, size = order.batch_size, world.world_size
    total = order.num_samples(int(str(train.state_dict()["epoch"])))
    is_given = balance is not None and not isinstance(balance, str)
    speeds = whole_speeds(balance, world_size=size) if is_given else train.speeds
    last = batch_size if order.remainder == "pad" else total % batch_size
    steps = [] if limit_steps is not None and limit_steps < -(-total // batch_size) else [("the last step", last)]
    if speeds is not None and total >= batch_size:  # with equal shares a full step shows it at once
        steps.insert(0, ("a full step", batch_size))
    micro_batch = train.micro_batch
    for which, count in steps:
        parts = num_micro_batches(count, world_size=size, micro_batch=micro_batch, speeds=speeds)
        sizes = share_sizes(count, world_size=size, speeds=speeds)
        if 1 in {piece for share in sizes for piece in (share // parts, -(-share // parts))}:
            how = "" if speeds is None else f" by their speeds {', '.join(map(str, speeds))}"
            ranks = "" if size == 1 else f", shared by {size} ranks{how}"
            cut = "" if parts == 1 else f", cut into {parts} micro-batches of at most {micro_batch}"
            return f"{which} of an epoch has {count} of {total} samples{ranks}{cut}, so a rank gets a single sample"
    return ""


def check_model(model: nn.Module, world: World) -> None:
    """Refuse a model whose gradients would not be summed over the ranks of the world, or over other ranks.

    Raises:
        ConfigError: the message says how to fix the model.
    """
    refuse_strategies(model)
    replicas = replicas_in(model)
    if is_sharded(model):
        check_sharded(model, world)
    elif replicas is not None:
        size = replicas.process_group.size()
        if size != world.world_size:
            raise ConfigError(
                f"the model is replicated over {size} ranks, but this world has {world.world_size}: wrap it with "
                "rankwise.prepare(model, world), and pass the same world here"
            )
        inside = {id(p) for p in replicas.parameters()}
        outside = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in inside]
        if outside:
            raise ConfigError(
                f"{len(outside)} trainable parameters are outside the part of this model that DistributedDataParallel "
                f"wraps, and are not averaged over the ranks: {listed(outside)}. Wrap the whole model: "
                "rankwise.prepare(model, world)"
            )
    elif world.world_size > 1 and not hasattr(model, "no_sync") and any(p.requires_grad for p in model.parameters()):
        raise ConfigError(
            f"this world has {world.world_size} ranks, but the model, a plain {type(model).__name__}, does not reduce "
            "their gradients: each rank would train its own model. Wrap it first: model = rankwise.prepare(model, "
            "world), or DistributedDataParallel"
        )


def check_optimizer(model: nn.Module, optimizer: Any, world: World) -> None:
    """Compare the optimizer's parameters with the model's, and refuse an optimizer that cannot step by itself.

    The main rank warns about trainable parameters that no group has.

    Raises:
        ConfigError: it is not a single optimizer, needs a closure, or has parameters that are not the model's.
    """
    if isinstance(optimizer, list | tuple | dict):
        raise ConfigError(
            f"one optimizer must take the step, got a {type(optimizer).__name__} of {len(optimizer)}: pass one "
            "optimizer with several parameter groups; several optimizers need Window in your own loop "
            "(window.finish(), then each optimizer's step())"
        )
    if not all(hasattr(optimizer, name) for name in ("param_groups", "step", "zero_grad", "state_dict")):
        raise ConfigError(f"optimizer= must be a torch optimizer, got a {type(optimizer).__name__}")
    if needed := _needed(type(optimizer).step):
        raise ConfigError(
            f"{type(optimizer).__name__}.step needs {', '.join(needed)}: it evaluates the loss several times a step, "
            "but an exact step over micro-batches and ranks does so once. Use SGD, AdamW or another optimizer whose "
            "step() needs no argument"
        )
    _check_parameters(model, optimizer, world)


def check_precision(model: nn.Module, optimizer: Any, scaler: Any, world: World) -> None:
    """Refuse float16 parameters together with a loss scale; warn about them without one, on the main rank.

    Raises:
        ConfigError: there is a scaler, which cannot unscale their gradients.
    """
    import torch

    trained = [(name, p) for name, p in unwrapped(model).named_parameters() if p.requires_grad]
    half = [plain_name(name) for name, p in trained if p.dtype is torch.float16]
    mend = 'keep the model in float32, and pass precision="fp16" or "bf16" for arithmetic in half precision'
    if half and scaler is not None:
        raise ConfigError(
            f"{len(half)} trainable parameters are float16: {listed(half)}; but a scaled loss needs float32 ones, "
            f"whose gradients it can unscale: {mend}"
        )
    if half and world.is_main:
        text = "%d trainable parameters are float16, in which small updates vanish and Adam's divide by zero: %s; %s"
        _warn_once(optimizer, text, len(half), listed(half), mend)


def _check_parameters(model: nn.Module, optimizer: Any, world: World) -> None:
    """Compare the optimizer's parameters with the model's; see `check_optimizer`."""
    held = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    named = {id(p): name for name, p in unwrapped(model).named_parameters()}
    if held.keys() - named.keys() and held.keys() & prepared_as(model).before.keys():
        raise ConfigError(
            f"the {type(optimizer).__name__} holds the parameters that the model had before strategy='fsdp' replaced "
            "them by shards: use optimizer = rankwise.train.prepare_optimizer(optimizer, model)"
        )
    if strange := [f"group {index}" for key, index in held.items() if key not in named]:
        raise ConfigError(
            f"{len(strange)} of the {len(held)} tensors of the optimizer are not parameters of the model "
            f"({listed(dict.fromkeys(strange))}): their gradients are not averaged over ranks, or they belong to "
            "another instance and the model would not train. Make the optimizer from this model's parameters(); if it "
            "is the loss module that learns, put it into the model"
        )
    if prepared_as(model).strategy == "zero1" and not shards_state(optimizer) and world.is_main:
        _warn_once(
            optimizer,
            "the model was prepared with strategy='zero1', but every rank holds the whole state of this %s: the steps "
            "are right, but no memory is saved. Use optimizer = rankwise.train.prepare_optimizer(optimizer, model)",
            type(optimizer).__name__,
        )
    trained = {id(p) for p in unwrapped(model).parameters() if p.requires_grad}
    left = [named[key] for key in named if key in trained - held.keys()]
    if left and world.is_main:
        _warn_once(
            optimizer,
            "%d trainable parameters are in no group of the optimizer and will not change: %s. Add them, or freeze "
            "them with requires_grad_(False)",
            len(left),
            listed(map(plain_name, left)),
        )


def _warn_once(optimizer: torch.optim.Optimizer, text: str, *values: Any) -> None:
    said = _said.setdefault(optimizer, set())
    if text not in said:
        said.add(text)
        _LOG.warning(text, *values)


def check_scheduler(scheduler: Any, optimizer: Any) -> None:
    """Refuse a scheduler that `step()` without arguments does not advance, or that is another optimizer's.

    Raises:
        ConfigError: it is not a scheduler, its step needs a value, or it changes rates that no step uses.
    """
    if scheduler is None:
        return
    if isinstance(scheduler, type):
        name = scheduler.__name__
        raise ConfigError(
            f"scheduler= got the class {name}: pass an object, {name}(optimizer, ...), or a function that makes it, "
            f"lambda optimizer: {name}(optimizer, ...)"
        )
    step = getattr(scheduler, "step", None)
    if not callable(step):
        raise ConfigError(
            f"scheduler= must be one object with a step(), got a {type(scheduler).__name__}; chain several with "
            "torch.optim.lr_scheduler.ChainedScheduler or SequentialLR"
        )
    if needed := _needed(step):
        name = type(scheduler).__name__
        raise ConfigError(
            f"{name}.step needs {', '.join(needed)}, but scheduler= is stepped once after each optimizer step, without "
            "a value: leave scheduler= out, step it where the value is known (Hooks(validation_end=lambda trainer, "
            f"epoch, values: scheduler.step(values['val_loss']))), and keep it with parts={{'{name.lower()}': "
            "Replicated(scheduler)}"
        )
    other = getattr(scheduler.scheduler if isinstance(scheduler, BySamples) else scheduler, "optimizer", None)
    if hasattr(other, "param_groups") and not _are_one(other, optimizer):
        raise ConfigError(
            f"the {type(scheduler).__name__} of scheduler= was made for another {type(other).__name__} than the one "
            "that takes the steps, whose learning rate would never change: make it of this one, or pass a function "
            "that does, scheduler=lambda optimizer: ..."
        )


def _are_one(one: Any, other: Any) -> bool:
    """Whether optimizers are the same, or share their groups, or `other` has `one` inside."""
    groups = [id(group) for group in other.param_groups]
    inside = any(one is each for each in (other, *vars(other).values()))
    return inside or any(id(group) in groups for group in one.param_groups)


def _needed(function: Any) -> list[str]:
    """Return the required arguments of a function."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in parameters if p.kind in plain and p.default is p.empty and p.name != "self"]
