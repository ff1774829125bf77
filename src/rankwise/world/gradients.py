"""A differentiable `all_gather`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from rankwise.world.handshake import Call, call_place, exchange
from rankwise.world.tree import Leaf, flatten, rebuild

if TYPE_CHECKING:
    import torch

    from rankwise.world.value import World

__all__ = ["all_gather_with_grad"]


def all_gather_with_grad(world: World, tree: Any) -> list[Any]:
    """Gather like `World.all_gather`; gradients flow back to tensors that require them.

    The backward pass is a collective: every rank must run it, through all results. Rank r's input gets the sum over
    ranks of the gradients of part r.

    Raises:
        DesyncError: a tensor requires a gradient on some ranks only, so the backward pass would hang.
    """
    leaves = flatten(tree)
    tracked = [i for i, leaf in enumerate(leaves) if leaf.kind == "tensor" and leaf.value.requires_grad]
    if world.channel is not None:
        _agree(world, tracked)
    gathered = world.all_gather([leaf.value for leaf in leaves])
    if not tracked:
        return [rebuild(tree, iter(values)) for values in gathered]
    return _with_grad(world, tree, leaves, tracked, gathered)


class _Tracked:
    """An offer that says which leaves require a gradient."""

    payload_bytes = 0

    def __init__(self, tracked: list[int]) -> None:
        self.structure = f"gradients of the leaves {tracked}"

    def payload(self) -> bytes:
        return b""


def _agree(world: World, tracked: list[int]) -> None:
    exchange(world, Call("grad_gather", call_place()), lambda: _Tracked(tracked))


def _with_grad(world: World, tree: Any, leaves: list[Leaf], tracked: list[int], gathered: list[list[Any]]) -> list[Any]:
    inputs = [leaves[i].value for i in tracked]
    outputs = [values[i] for values in gathered for i in tracked]
    linked = iter(_function().apply(world, outputs, *inputs))
    for values in gathered:
        for i in tracked:
            values[i] = next(linked)
    return [rebuild(tree, iter(values)) for values in gathered]


@functools.cache
def _function() -> Any:
    """Return the autograd function; created late, because its base class needs torch."""
    import torch
    from torch.autograd.function import once_differentiable

    class Gathered(torch.autograd.Function):
        """Forward returns the gathered parts; backward sums the gradients over ranks and returns this rank's part."""

        @staticmethod
        def forward(ctx: Any, world: World, outputs: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
            ctx.world, ctx.num_inputs = world, len(inputs)
            return tuple(output.view_as(output) for output in outputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            sums = ctx.world.all_reduce(list(grads))
            first = ctx.world.rank * ctx.num_inputs
            return (None, None, *sums[first : first + ctx.num_inputs])

    return Gathered
