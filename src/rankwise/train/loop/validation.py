"""Exact evaluation: every sample once, no padding, on the unwrapped module, one reduction at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rankwise import vitals
from rankwise.data.contract import Batch
from rankwise.guard.findings import listed
from rankwise.train.loaders.streams import StreamLoader, as_held_out
from rankwise.train.models.passes import Precision, autocasting, in_eval_mode
from rankwise.train.models.sharding import is_sharded
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.ledger import RunningMeans
from rankwise.train.step.output import read_output
from rankwise.train.step.warmup import held_sample, note_dtypes
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    from torch import nn

_LOG = logging.getLogger("rankwise.train")


def evaluate(
    model: nn.Module,
    loader: Any,
    step_fn: Any,
    *,
    world: World | None = None,
    precision: Precision | None = None,
    between: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return the mean loss and metrics over all samples of `loader`, equal on all ranks.

    Every rank calls it. The unwrapped module is called in eval mode without gradients, so ranks may have different
    numbers of samples, or none (a rank without samples runs a stand-in if the model is sharded). Buffers (running
    statistics) are first copied from the main rank, as in the next training step.

    Args:
        model: a prepared model, or any module.
        loader: an unpadded order, for example ``Order(source, batch_size=..., kind="sequential")``; or a DataLoader or
            another iterable of batches, which is wrapped in a `StreamLoader` with ``lockstep=False``.
        step_fn: see `rankwise.train.step.output`.
        world: this rank's world; `World.current()` if None.
        precision: run the step function under autocast to "bf16" or "fp16".
        between: called before each global batch of an order, on every rank; may raise to end the evaluation.

    Returns:
        "loss" and the metrics by name.
    """
    import torch

    world = joined_world(world, "evaluate")
    step_fn = autocasting(step_fn, precision, world)
    module = unwrapped(model)
    sharded = is_sharded(module)
    loader = as_held_out(loader, world, together=sharded)
    if isinstance(loader, StreamLoader):
        between = None  # streams have different lengths on each rank, which iterates alone
    _share_buffers(module, world)
    means = RunningMeans()
    held: Batch | None = None
    loader.set_epoch(0)
    with in_eval_mode(module), torch.no_grad():
        for batches in loader:
            vitals.beat(phase="validate")
            if between is not None:
                between()
            if sharded and held is None:
                held = held_sample(batches, world)
            for batch in batches:
                if held is not None and not len(batch.ids):
                    step_fn(module, held)  # all ranks gather the parameters together
                if not len(batch.ids):
                    continue
                try:
                    output = read_output(step_fn(module, batch), batch)
                except Exception as error:
                    note_dtypes(error, module, batch)
                    ids = listed([str(i) for i in batch.ids], most=16)
                    error.add_note(f"in the evaluation on rank {world.rank}, with the samples {ids}")
                    raise
                means.add(((output.total.detach(), output.weight), output.metrics))
    values = means.reduce(world)
    if not values and world.is_main:
        _LOG.warning("the held-out data gave no batch on any rank: is it a generator, which starts only once?")
    return values


def _share_buffers(module: nn.Module, world: World) -> None:
    import torch

    buffers = dict(module.named_buffers())
    if world.world_size == 1 or not buffers:
        return
    for name, value in world.broadcast({name: b.detach() for name, b in buffers.items()}).items():
        with torch.no_grad():
            buffers[name].copy_(value)
