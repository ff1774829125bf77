"""Passes that leave no trace: the warm-up before the first step, and the stand-in of a rank without samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rankwise.checkpoint import RandomState
from rankwise.data.contract import Batch
from rankwise.train.output import read_output
from rankwise.train.wrapping import unwrapped
from rankwise.world import World

if TYPE_CHECKING:
    from torch import nn

__all__ = ["held_sample", "kept_buffers", "kept_random_state", "warm_up"]


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers at the end (running statistics, counters)."""
    import torch

    buffers = list(unwrapped(model).buffers())
    saved = [b.detach().clone() for b in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.copy_(value)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and torch at the end, as a checkpoint would."""
    generators = RandomState()
    saved = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(saved)


def held_sample(batches: tuple[Batch, ...], world: World) -> Batch:
    """Return what this rank takes part with when it has no sample of its own. Every rank calls it once.

    It is real data wherever this rank has any. When the step has fewer samples than ranks some rank has none; then
    the last rank, whose share is never empty, sends its own to all.
    """
    mine = next((b for b in batches if len(b.ids)), batches[0]).stand_in()
    if len(batches[0].share.step.ids) >= world.world_size:
        return mine
    last = world.world_size - 1
    sent: Batch = world.broadcast_object(mine if world.rank == last else None, src=last)
    return sent


def warm_up(model: nn.Module, step_fn: Any, batch: Batch, world: World) -> bool:
    """Run one synchronised forward and backward of weight zero, and leave everything as it was.

    DistributedDataParallel rebuilds its gradient buckets after its first backward, and the order of summation follows
    their layout. Without this pass the first step of a resumed process is summed in another order than the same step
    of an undisturbed run, and from three ranks on the two runs differ in the last bits. Every rank calls it, before
    its first step, fresh or resumed.

    Returns:
        Whether the step function's answers are counted by the order (see `StepOutput.counted`).
    """
    with kept_buffers(model), kept_random_state():
        output = read_output(step_fn(model, batch), batch)
        if world.world_size > 1:
            (output.total * 0).backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return output.counted
