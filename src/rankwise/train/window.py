"""One optimizer step over several micro-batches and ranks: the gradient is the exact mean over the global batch.

DistributedDataParallel divides the sum of the ranks' gradients by the number of ranks W. Each micro-batch
backpropagates the *sum* S of its weighted losses times W / N, where N is the sum of all weights over ranks and
micro-batches: (1/W) * sum(grad S * W / N) = grad(sum S / sum w), however unequal the shares are. Where N is known
beforehand the factor goes in as the seed of each backward pass; otherwise ranks add up their weights before the last
one, the only one that synchronises, and one multi-tensor multiply scales what the earlier ones left. So what travels
between ranks has the magnitude of a mean: a communication hook may round it to half precision.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError, StepError
from rankwise.train.checks import check_model
from rankwise.train.wrapping import replicas_of
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Window", "note_synchronised"]


@dataclass(slots=True)
class _Past:
    """What the windows of one model leave for the next.

    Attributes:
        unfinished: all backward passes of a window ran, and `finish` was not called.
        synchronised: a backward pass has synchronised: a static graph needs that before its first `no_sync`.
    """

    unfinished: bool = False
    synchronised: bool = False


_past: weakref.WeakKeyDictionary[nn.Module, _Past] = weakref.WeakKeyDictionary()


def note_synchronised(model: nn.Module) -> None:
    """Note that a backward pass over the model has synchronised outside a window."""
    _past.setdefault(model, _Past()).synchronised = True


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
        ConfigError: the model does not add up its gradients over the ranks of the world: pass it through `prepare`; or
            its ``static_graph=True`` has not seen a pass that synchronises yet.
        StepError: `total_weight` is not positive, or the model's last window was not finished.
    """

    def __init__(self, model: nn.Module, world: World, *, num_micro: int, total_weight: float | None = None) -> None:
        check_model(model, world)
        self._model = model
        self._world = world
        self._num_micro = num_micro
        self._no_sync = getattr(model, "no_sync", None)
        self._total_weight = None if total_weight is None else _positive(total_weight)
        self._past = _past.setdefault(model, _Past())
        self._check_past()
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

    def _check_past(self) -> None:
        if self._past.unfinished:
            self._past.unfinished = False
            raise StepError(
                "the last window of this model was not finished: call window.finish() after its last backward and "
                "before optimizer.step(), it completes the gradients"
            )
        replicas = replicas_of(self._model) if self._num_micro > 1 and not self._past.synchronised else None
        if replicas is not None and replicas.static_graph:
            raise ConfigError(
                "with static_graph=True the first backward pass must synchronise, and that of several micro-batches "
                "does not: take the steps with ExactStep, whose warm-up does, or the first one with num_micro=1, or "
                "leave static_graph out"
            )

    def backward(self, total: torch.Tensor, weight: float | torch.Tensor) -> None:
        """Backpropagate the sum of this micro-batch's weighted losses and remember its weight.

        The last one of the step is a collective: it adds up the weights, where they were not known, and the gradients.

        Args:
            total: scalar tensor with a graph.
            weight: sum of the weights, a number or a scalar tensor.

        Raises:
            StepError: one more than announced, or the sum of weights is negative or NaN (raised on every rank).
        """
        if self._backwards == self._num_micro:
            raise StepError(f"this window was opened for {self._num_micro} backward passes, got one more")
        self._weight = self._weight + weight
        is_last = self._backwards + 1 == self._num_micro
        if is_last and self._total_weight is None:
            self._total_weight = self._sum_over_ranks(float(self._weight))
            self._rescale(self._factor(self._total_weight))
        if self._total_weight is None:
            total.backward()  # type: ignore[no-untyped-call]
        else:
            total.backward(total.new_tensor(self._factor(self._total_weight)))  # type: ignore[no-untyped-call]
        self._backwards += 1
        self._past.unfinished = is_last

    def add_samples(self, num_samples: int) -> None:
        """Count samples that arrived: `num_samples` is their sum over the ranks after the last backward.

        Every rank does so at least once in a step, or none does; before the last backward, which adds them up.
        """
        if self._backwards == self._num_micro:
            raise StepError("the window has added up its samples: call add_samples before the last backward")
        self._num_samples = (self._num_samples or 0) + num_samples

    @property
    def num_samples(self) -> int | None:
        """Samples that were counted, after the last backward those of all ranks; None if nobody counted."""
        return self._num_samples

    def finish(self) -> float:
        """Complete the gradients of the global mean and return the sum of all weights; every rank calls it.

        Where that sum is zero there is no mean to follow: the gradients are then None, so that `optimizer.step()`
        changes nothing.

        Raises:
            StepError: micro-batches are missing.
        """
        if self._backwards != self._num_micro:
            raise StepError(f"the window wants {self._num_micro} micro-batches, got {self._backwards} backward passes")
        self._past.unfinished, self._past.synchronised = False, True
        assert self._total_weight is not None
        if not self._total_weight:
            self._model.zero_grad(set_to_none=True)
        return self._total_weight

    def _sum_over_ranks(self, weight: float) -> float:
        if self._world.world_size > 1 and self._num_samples is None:
            weight = float(self._world.all_reduce(weight))
        elif self._world.world_size > 1:
            weight, self._num_samples = self._world.all_reduce((weight, self._num_samples))
        if not weight >= 0:
            raise StepError(f"the weights of this step sum to {weight} over all ranks: weights are 0 or more")
        return float(weight)

    def _factor(self, total_weight: float) -> float:
        """Undo the wrapper's division by the number of ranks, and divide by the sum of weights."""
        if not total_weight:
            return 0.0
        return (1.0 if self._no_sync is None else self._world.world_size) / total_weight

    def _rescale(self, factor: float) -> None:
        import torch

        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        if grads:
            torch._foreach_mul_(grads, factor)  # the one multi-tensor multiply that torch offers


def _positive(total_weight: float) -> float:
    if not total_weight > 0:
        raise StepError(
            f"total_weight is the sum of the step's weights over all ranks, a positive number, got {total_weight}; "
            "None adds it up, and a step whose weights sum to zero then changes nothing"
        )
    return total_weight
