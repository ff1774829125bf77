"""The warm-up before the first step, and the stand-in of a rank without samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.data.contract import Batch
from rankwise.errors import StepError
from rankwise.guard.check import replicas_in
from rankwise.guard.findings import listed
from rankwise.train.models.passes import kept_buffers, kept_random_state
from rankwise.train.models.sharding import lone_norms, watched_units
from rankwise.train.models.wrapped_models import finds_unused, unwrapped
from rankwise.train.step.output import read_output
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn


def held_sample(batches: tuple[Batch, ...], world: World) -> Batch:
    """Return the stand-in batch for this rank if it has no sample of its own. Every rank calls it once.

    It is real data if this rank has any. If the step has fewer samples than ranks, some rank has none; then
    the last rank, whose share is never empty, sends its own to all.
    """
    mine = next((b for b in batches if len(b.ids)), batches[0]).stand_in()
    if batches[0].share.step.size >= world.world_size:
        return mine
    last = world.world_size - 1
    sent: Batch = world.broadcast_object(mine if world.rank == last else None, src=last)
    return sent


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """Findings of the warm-up on one rank; small, because they are sent to the others.

    Attributes:
        counted: whether the order counts the step function's results (see `StepOutput.counted`).
        unused: trainable parameters without a gradient, if DistributedDataParallel waits for all of them.
        needs_two: layers with batch statistics for which a single sample has too few values.
        may_skip: whether the loader may skip damaged samples.
        units: the units of a sharded model, in the order in which they were gathered.
    """

    counted: bool
    unused: tuple[str, ...]
    needs_two: tuple[str, ...]
    may_skip: bool = False
    units: tuple[str, ...] = ()


def warm_up(model: nn.Module, step_fn: Any, batch: Batch, world: World) -> FirstPass:
    """Run one synchronised forward and backward pass of weight zero, without lasting changes.

    DistributedDataParallel rebuilds its gradient buckets after its first backward pass, and the order of summation
    depends on their layout. Without this pass, the first step of a resumed process would be summed in another order
    than the same step of an undisturbed run, and from three ranks on the two runs would differ in the last bits. Every
    rank calls it, before its first step, fresh or resumed.
    """
    needs_two: list[str] = []
    with (
        kept_buffers(model),
        kept_random_state(),
        _watched_norms(model, needs_two, len(batch.ids)),
        watched_units(model) as (left, entered),
    ):
        try:
            output = read_output(step_fn(model, batch), batch)
            if world.world_size > 1:
                (output.total * 0).backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            note_dtypes(error, model, batch)
            ids = listed(dict.fromkeys(map(str, batch.ids)))
            error.add_note(f"in the pass of weight zero before the first step, on rank {world.rank}, with sample {ids}")
            raise
    replicas, unused = replicas_in(model), tuple[str, ...]()
    if entered:
        unused = () if finds_unused(model) else tuple(left)
    elif replicas is not None and not (replicas.find_unused_parameters or replicas.static_graph):
        named = dict(replicas.module.named_parameters())
        unused = tuple(name for name in reduced_names(model) if named[name].grad is None)
    model.zero_grad(set_to_none=True)
    return FirstPass(counted=output.counted, unused=unused, needs_two=tuple(needs_two), units=tuple(entered))


@contextmanager
def _watched_norms(model: nn.Module, found: list[str], num_samples: int) -> Iterator[None]:
    """Record layers with batch statistics that see one value per channel of each sample: a single one fails there."""

    def look(name: str, values: tuple[Any, ...]) -> None:
        given = values[0]
        if given.numel() == given.shape[1] * num_samples and name not in found:
            found.append(name)

    handles = [
        module.register_forward_pre_hook(lambda _, values, name=name: look(name, values))
        for name, module in lone_norms(unwrapped(model))
        if module.training
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def unused_text(names: Sequence[str], where: str) -> str:
    """Return which parameters got no gradient, and how to fix it."""
    return (
        f"the loss does not depend on these trainable parameters {where}: {listed(names)}. The ranks wait for the "
        'gradients of all of them: pass Trainer(ddp={"find_unused_parameters": True}), or prepare(model, world, '
        "find_unused=True), if the step function uses them only sometimes; else freeze them with "
        "requires_grad_(False), or leave them out"
    )


def note_dtypes(error: Exception, model: nn.Module, batch: Batch) -> None:
    """Add the dtypes of parameters and batch to torch's errors about dtypes that differ, which name neither."""
    import torch
    from torch.utils._pytree import tree_flatten_with_path

    if not isinstance(error, RuntimeError) or not re.search(r"dtype|scalar type|input type", str(error), re.IGNORECASE):
        return
    own = {_dtype(p) for p in model.parameters() if p.is_floating_point()}
    held = getattr(batch, "data" if hasattr(batch, "data") else "fields", None)  # of a dataset or stream; of arrays
    given = {
        "".join(map(str, path)): _dtype(leaf)
        for path, leaf in tree_flatten_with_path(held)[0]
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    }
    if own and not own.issuperset(given.values()):
        error.add_note(
            f"the parameters of the model are {' and '.join(sorted(own))}, but the batch has "
            + ", ".join(f"{name} of {dtype}" for name, dtype in given.items())
            + ': keep the model in float32 (precision="bf16" or "fp16" computes in half precision), or cast these '
            "fields in the step function or in transform="
        )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def reduced_names(model: nn.Module) -> tuple[str, ...]:
    """Return the parameters whose gradients DistributedDataParallel waits for, in its order, if none changed since."""
    replicas = replicas_in(model)
    if replicas is None:
        return ()
    named, ignored = replicas.module.named_parameters(), replicas.parameters_to_ignore
    return tuple(name for name, p in named if p.requires_grad and name not in ignored)


def explained(error: RuntimeError, model: nn.Module, names: Sequence[str]) -> Exception:
    """Return torch's errors about unused parameters (by name) and about a second backward pass; others unchanged.

    Args:
        error: torch's error.
        model: the prepared model.
        names: its `reduced_names` when it was wrapped, or at the first step: torch counts what was trainable then.
    """
    replicas, text = replicas_in(model), str(error)
    if "backward through the graph a second time" in text:
        made = StepError(
            "the loss's graph has been used already: the step function returns the loss and does not call backward() "
            "itself, and it keeps no graph from an earlier pass (detach what it keeps, such as a hidden state)"
        )
        made.__cause__ = error
        return made
    found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
    if replicas is None or found is None:
        return error
    missing, now = [names[int(i)] for i in found[1].split() if int(i) < len(names)], reduced_names(model)
    if frozen := [name for name in missing if name not in now]:
        made = StepError(
            f"{listed(frozen)} became frozen after the model was prepared for several ranks, which still wait for the "
            "gradients: freeze before prepare() or Trainer(), or pass the option find_unused_parameters=True of "
            "DistributedDataParallel, which allows it later"
        )
    else:
        made = StepError(unused_text(missing, "in the last step"))
    made.__cause__ = error
    return made
