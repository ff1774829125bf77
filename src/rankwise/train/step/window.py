"""Windows, also over streams: one optimizer step whose gradient is the exact mean over the global batch.

DistributedDataParallel divides the sum of the ranks' gradients by the number of ranks W. Each micro-batch
backpropagates the *sum* S of its weighted losses, so that the gradient times W / N, where N is the sum of all weights
over ranks and micro-batches, is the mean: W / N * (1/W) * sum(grad S) = grad(sum S / sum w), for any unequal shares.
If N is known in advance, the factor is the seed of each backward pass. Otherwise ranks sum their weights during the
last backward pass: the seed is then 1 / c, with a power of two c near the last step's N / W, and one multi-tensor
multiply by W c / N completes the gradients. So gradients in transit have about the magnitude of a mean (a communication
hook may round them to half precision), and because powers of two only change the exponent, the result does not depend
on c, to the bit.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rankwise.errors import ConfigError, StepError
from rankwise.guard.check import replicas_in
from rankwise.train.loaders.streams import StreamLoader, after_step, counted_samples
from rankwise.train.models.passes import held_pass
from rankwise.train.models.sharding import is_sharded, local_part, unsynchronised
from rankwise.train.step.checks import check_model
from rankwise.train.step.output import on_host
from rankwise.world import World
from rankwise.world.adopt import joined_world
from rankwise.world.collectives.reductions import start_sum

if TYPE_CHECKING:
    import torch
    from torch import nn

_NOTHING = nullcontext()


@dataclass(slots=True)
class _Past:
    """State that the windows of one model pass on to the next.

    Attributes:
        is_sharded: whether `fully_shard` was applied to parts of the model, found by a walk over it.
        world_size: for which the model was checked; 0 before that.
        unfinished: all backward passes of a window ran, but `finish` was not called.
        synchronised: a backward pass has synchronised: a static graph needs this before its first `no_sync`.
        divisor: power of two near one rank's part of a step's weights; 0 before the first sum.
        seed: the seed of the last backward pass; making a tensor from it costs as much as a small layer.
        parameters: of a wrapped model.
    """

    is_sharded: bool
    world_size: int = 0
    unfinished: bool = False
    synchronised: bool = False
    divisor: float = 0.0
    seed: tuple[float, torch.Tensor] | None = None
    parameters: tuple[nn.Parameter, ...] = ()


_past: weakref.WeakKeyDictionary[nn.Module, _Past] = weakref.WeakKeyDictionary()


def note_synchronised(model: nn.Module) -> None:
    """Record that a backward pass over the model has synchronised outside a window."""
    _past.setdefault(model, _Past(is_sharded=is_sharded(model))).synchronised = True


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
        model: a prepared model.
        world: this rank's world.
        num_micro: micro-batches of the step, the same on all ranks.
        total_weight: the sum of all weights over ranks and micro-batches, if known in advance; None sums the
            weights with one small all-reduce. Known on all ranks or on none.

    Raises:
        ConfigError: the model does not sum its gradients over the ranks of the world: pass it through `prepare`; or
            its ``static_graph=True`` has not yet had a synchronising pass.
        StepError: `total_weight` is not positive, or the model's last window was not finished.
    """

    def __init__(self, model: nn.Module, world: World, *, num_micro: int, total_weight: float | None = None) -> None:
        past = _past.get(model)
        if past is None or past.world_size != world.world_size:
            check_model(model, world)
            past = past or _past.setdefault(model, _Past(is_sharded=is_sharded(model)))
            past.world_size = world.world_size
        self._model = model
        self._world = world
        self._num_micro = num_micro
        self._past = past
        self._no_sync = partial(unsynchronised, model) if past.is_sharded else getattr(model, "no_sync", None)
        # the wrapper divides the sum of the gradients by this number of ranks; the factor of the mean undoes that
        self._num_averaged = 1.0 if self._no_sync is None else float(world.world_size)
        self._total_weight = total_weight
        if total_weight is not None and not total_weight > 0:
            raise StepError(
                "total_weight must be the sum of the step's weights over all ranks, a positive number, got "
                f"{total_weight}; None computes it, and then a step whose weights sum to zero changes nothing"
            )
        if num_micro > 1 or past.unfinished:
            self._check_past()
        self._opened = 0
        self._backwards = 0
        self._weight: float | torch.Tensor = 0.0
        self._num_samples: int | None = None
        self._divisor = 0.0 if total_weight is not None else past.divisor or 1.0
        self._counted: Callable[[], list[float]] | None = None

    def micro_batch(self) -> AbstractContextManager[Any]:
        """Return the context of the next micro-batch; forward *and* backward belong inside it.

        Raises:
            StepError: more micro-batches than announced.
        """
        self._opened += 1
        if self._opened > self._num_micro:
            raise StepError(f"this window was opened for {self._num_micro} micro-batches, got one more")
        last = self._opened == self._num_micro
        return _NOTHING if last or self._no_sync is None else self._no_sync()

    def _check_past(self) -> None:
        if self._past.unfinished:
            self._past.unfinished = False
            raise StepError(
                "the last window of this model was not finished: call window.finish(), which completes the gradients, "
                "after its last backward and before optimizer.step()"
            )
        replicas = replicas_in(self._model) if self._num_micro > 1 and not self._past.synchronised else None
        if replicas is not None and replicas.static_graph:
            raise ConfigError(
                "with static_graph=True the first backward pass must synchronise, but that of several micro-batches "
                "does not: use ExactStep, whose warm-up does, take the first step with num_micro=1, or leave "
                "static_graph out"
            )

    def backward(self, total: torch.Tensor, weight: float | torch.Tensor) -> None:
        """Backpropagate the sum of this micro-batch's weighted losses and store its weight.

        The last call in a step is a collective: it sums the gradients, and at the same time the weights, if they were
        not known.

        Args:
            total: scalar tensor with a graph.
            weight: sum of the weights, a number or a scalar tensor.

        Raises:
            StepError: more calls than announced.
        """
        if self._backwards == self._num_micro:
            raise StepError(f"this window was opened for {self._num_micro} backward passes, got one more")
        self._weight = self._weight + (weight if type(weight) is float else on_host(weight))
        is_last = self._backwards + 1 == self._num_micro
        if is_last and self._total_weight is None:
            self._count()
        if self._divisor:
            seed = 1.0 / self._divisor
        else:
            seed = self._num_averaged / self._total_weight if self._total_weight else 0.0
        held = self._past.seed
        if held is None or held[0] != seed or held[1].dtype != total.dtype or held[1].device != total.device:
            held = self._past.seed = (seed, total.new_tensor(seed))
        total.backward(held[1])  # type: ignore[no-untyped-call]
        self._backwards += 1
        self._past.unfinished = is_last

    def add_samples(self, num_samples: int) -> None:
        """Count samples that arrived: after `finish`, `num_samples` is their sum over the ranks.

        Every rank calls this at least once in a step, or none does; before the last backward, which sums them.
        """
        if self._backwards == self._num_micro:
            raise StepError("the window has already added up its samples: call add_samples before the last backward")
        self._num_samples = (self._num_samples or 0) + num_samples

    @property
    def num_samples(self) -> int | None:
        """Number of counted samples, after `finish` of all ranks; None if none were counted."""
        return self._num_samples

    def finish(self) -> float:
        """Complete the gradients of the global mean and return the sum of all weights; every rank calls it.

        If that sum is zero, there is no mean: the gradients are then None, so that `optimizer.step()`
        changes nothing.

        Raises:
            StepError: micro-batches are missing, or the sum of weights is negative or NaN (raised on every rank).
        """
        if self._backwards != self._num_micro:
            raise StepError(
                f"the window expects {self._num_micro} micro-batches, got {self._backwards} backward passes"
            )
        self._past.unfinished, self._past.synchronised = False, True
        if self._counted is not None:
            self._total_weight = self._checked(self._counted())
        assert self._total_weight is not None
        if not self._total_weight:
            self._model.zero_grad(set_to_none=True)
        elif self._divisor:
            self._multiply(self._divisor * (self._num_averaged / self._total_weight))
        if self._counted is not None:
            self._past.divisor = self._near(self._past.divisor, self._total_weight)
        return self._total_weight

    def _count(self) -> None:
        """Begin to sum the ranks' counts; wait for the result only if no earlier step gives the magnitude."""
        mine = float(self._weight)
        if self._world.world_size == 1:
            if self._num_micro > 1:
                self._counted = lambda: [mine]
            else:
                self._total_weight, self._divisor = self._checked([mine]), 0.0
            return
        counts = (mine,) if self._num_samples is None else (mine, float(self._num_samples))
        self._counted = start_sum(self._world, counts)
        # gradients of unsynchronised passes in a sharded model are not accessible before the last pass
        if not self._past.divisor and not self._past.is_sharded:
            sums = self._counted()
            self._counted = lambda: sums
            self._divisor = self._near(0.0, self._checked(sums)) or 1.0
            if self._num_micro > 1:
                self._multiply(1.0 / self._divisor)

    def _near(self, divisor: float, total_weight: float) -> float:
        """Return a power of two near a rank's part of the weight: the current one if it is within a factor of 8."""
        part = total_weight / self._world.world_size
        if not part or divisor / 8 <= part <= divisor * 8:
            return divisor
        return float(2.0 ** round(math.log2(part)))

    def _checked(self, sums: list[float]) -> float:
        if len(sums) > 1:
            self._num_samples = int(sums[1])
        if not 0 <= sums[0] < math.inf:
            raise StepError(f"the weights of this step sum to {sums[0]} over all ranks: weights must be 0 or more")
        return sums[0]

    def _multiply(self, factor: float) -> None:
        import torch

        # those of a wrapped model are fixed, and a walk over the model costs as much as the multiply
        known = self._past.parameters or tuple(self._model.parameters())
        if self._no_sync is not None:
            self._past.parameters = known
        grads = [g if type(g) is torch.Tensor else local_part(g) for p in known if (g := p.grad) is not None]
        if grads:
            torch._foreach_mul_(grads, factor)  # the only multi-tensor multiply in torch


class StreamWindow:
    """One step of `windows`: iterate over it for this rank's micro-batches, and use it as a `Window`.

    If this rank has no batch, it yields a stand-in, and multiplies its loss by zero.
    """

    def __init__(self, batches: tuple[Any, ...], window: Window, model: nn.Module) -> None:
        self._batches, self._window, self._model = batches, window, model
        self._micro = -1
        self.finished = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the micro-batches of the iterable, on the device."""
        for batch in self._batches:
            yield batch.data if len(batch.ids) else batch.stand_in().data

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Open the next micro-batch; forward *and* backward belong inside. A stand-in changes no buffers or counts."""
        self._micro += 1
        empty = self._micro < len(self._batches) and not len(self._batches[self._micro].ids)
        with self._window.micro_batch(), held_pass(self._model) if empty else nullcontext():
            yield

    def backward(self, total: torch.Tensor, weight: float | torch.Tensor) -> None:
        """Backpropagate the sum of this micro-batch's losses, and store its weight; see `Window.backward`."""
        if len(self._batches[self._micro].ids):
            self._window.backward(total, weight)
        else:
            self._window.backward(total * 0, 0.0)

    def finish(self) -> float:
        """Complete the gradients of the global mean; return the sum of all weights, 0 if there is nothing to do."""
        self.finished = True
        return self._window.finish()

    @property
    def num_samples(self) -> int:
        """Number of samples of the step over all ranks, after `finish`."""
        return after_step(self._batches[0], self._window.num_samples or 0)[0]


def windows(loader: Any, model: nn.Module, world: World | None = None, *, num_micro: int = 1) -> Iterator[StreamWindow]:
    """Yield the steps of an epoch over data of unknown and unequal lengths, for a loop of your own.

    ::

        for window in windows(loader, model, world, num_micro=4):
            optimizer.zero_grad()
            for x, y in window:
                with window.micro_batch():
                    losses = loss_fn(model(x), y)
                    window.backward(losses.sum(), weight=len(losses))
            window.finish()
            optimizer.step()

    Every rank must iterate to its end.

    Args:
        loader: an iterable of batches, or a `StreamLoader`, whose epochs continue from call to call.
        model: what `prepare` returned.
        world: this rank's world; `World.current()` if None.
        num_micro: micro-batches of a step; a `StreamLoader` has its own.

    Raises:
        ConfigError: the model is none, or its gradients are not summed over the ranks.
        StepError: the last step was not finished.
    """
    world = joined_world(world, "windows")
    check_model(model, world)
    stream = loader if isinstance(loader, StreamLoader) else StreamLoader(loader, world=world, num_micro=num_micro)
    for batches in stream:
        inner = Window(model, world, num_micro=len(batches))
        inner.add_samples(counted_samples(batches))
        window = StreamWindow(batches, inner, model)
        yield window
        if not window.finished:
            raise StepError("a step of windows() was not finished: call window.finish() before optimizer.step()")
        stream.mark_done(after_step(batches[0], inner.num_samples or 0)[1])
