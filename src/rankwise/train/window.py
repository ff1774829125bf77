"""One optimizer step over several micro-batches and ranks: the gradient is the exact mean over the global batch.

DistributedDataParallel divides the sum of the ranks' gradients by the number of ranks W. Each micro-batch
backpropagates the *sum* S of its weighted losses times W / N, where N is the sum of all weights over ranks and
micro-batches: (1/W) * sum(grad S * W / N) = grad(sum S / sum w), however unequal the shares are. Where N is known
beforehand the factor goes in as the seed of the backward pass; otherwise one multi-tensor multiply follows. Only the
last micro-batch synchronises.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rankwise.errors import StepError
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Window"]


class Window:
    """Gradient accumulation with an exact mean, for one optimizer step.

    Every rank must open one for the same step with the same number of micro-batches::

        window = Window(model, world, num_micro=len(batches))
        for batch in batches:
            with window.micro_batch():
                losses = loss_fn(model(batch["x"]), batch["y"])
                window.backward(losses.sum(), weight=len(losses))
        window.finish()
        optimizer.step()

    Args:
        model: what `prepare` returned.
        world: this rank's world.
        num_micro: micro-batches of the step, the same on all ranks.
        total_weight: the sum of all weights over ranks and micro-batches, where it is known beforehand; None adds the
            weights up with one small all-reduce. Known on all ranks or on none.

    Raises:
        StepError: `total_weight` is not positive.
    """

    def __init__(self, model: nn.Module, world: World, *, num_micro: int, total_weight: float | None = None) -> None:
        self._model = model
        self._world = world
        self._num_micro = num_micro
        self._no_sync = getattr(model, "no_sync", None)
        self._total_weight = None if total_weight is None else _positive(total_weight)
        self._opened = 0
        self._backwards = 0
        self._weight: float | torch.Tensor = 0.0
        self._num_samples: int | None = None

    def micro_batch(self) -> AbstractContextManager[Any]:
        """Return the context of the next micro-batch; forward *and* backward belong inside it.

        Raises:
            StepError: more micro-batches than announced.
        """
        self._opened += 1
        if self._opened > self._num_micro:
            raise StepError(f"this window was opened for {self._num_micro} micro-batches, got one more")
        last = self._opened == self._num_micro
        return nullcontext() if last or self._no_sync is None else self._no_sync()

    def backward(self, total: torch.Tensor, weight: float | torch.Tensor) -> None:
        """Backpropagate the sum of this micro-batch's weighted losses and remember its weight.

        Args:
            total: scalar tensor with a graph.
            weight: sum of the weights, a number or a scalar tensor. No synchronisation happens here.
        """
        if self._total_weight is None:
            total.backward()  # type: ignore[no-untyped-call]
        else:
            total.backward(total.new_tensor(self._factor(self._total_weight)))  # type: ignore[no-untyped-call]
        self._backwards += 1
        self._weight = self._weight + weight

    def add_samples(self, num_samples: int) -> None:
        """Count samples that arrived: `num_samples` is their sum over the ranks after `finish`.

        Every rank does so at least once in a step, or none does; only with weights that are added up.
        """
        self._num_samples = (self._num_samples or 0) + num_samples

    @property
    def num_samples(self) -> int | None:
        """Samples that were counted, after `finish` those of all ranks; None if nobody counted."""
        return self._num_samples

    def finish(self) -> float:
        """Complete the gradients of the global mean and return the sum of all weights; every rank calls it.

        Raises:
            StepError: micro-batches are missing, or the sum of weights is not positive (raised on every rank).
        """
        if self._backwards != self._num_micro:
            raise StepError(f"the window wants {self._num_micro} micro-batches, got {self._backwards} backward passes")
        if self._total_weight is not None:
            return self._total_weight
        total_weight = _positive(self._sum_over_ranks(float(self._weight)))
        self._rescale(self._factor(total_weight))
        return total_weight

    def _sum_over_ranks(self, weight: float) -> float:
        if self._world.world_size == 1:
            return weight
        if self._num_samples is None:
            return float(self._world.all_reduce(weight))
        weight, self._num_samples = self._world.all_reduce((weight, self._num_samples))
        return float(weight)

    def _factor(self, total_weight: float) -> float:
        """Undo the wrapper's division by the number of ranks, and divide by the sum of weights."""
        return (1.0 if self._no_sync is None else self._world.world_size) / total_weight

    def _rescale(self, factor: float) -> None:
        import torch

        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        if grads:
            torch._foreach_mul_(grads, factor)  # the one multi-tensor multiply that torch offers


def _positive(total_weight: float) -> float:
    if not total_weight > 0:
        raise StepError(
            f"the weights of this step sum to {total_weight} over all ranks, so there is no mean to follow: mask at "
            "most a part of a global batch, and return weights that are not negative"
        )
    return total_weight
