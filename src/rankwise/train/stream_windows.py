"""`windows`: the steps over a stream, for loops with their own forward and backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rankwise.errors import StepError
from rankwise.train.streams import StreamLoader, after_step, counted_samples
from rankwise.train.warmup import held_pass
from rankwise.train.window import Window
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["StreamWindow", "windows"]


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
        StepError: the last step was not finished.
    """
    world = joined_world(world, "windows")
    stream = loader if isinstance(loader, StreamLoader) else StreamLoader(loader, world=world, num_micro=num_micro)
    for batches in stream:
        inner = Window(model, world, num_micro=len(batches))
        inner.add_samples(counted_samples(batches))
        window = StreamWindow(batches, inner, model)
        yield window
        if not window.finished:
            raise StepError("a step of windows() was not finished: call window.finish() before optimizer.step()")
        stream.mark_done(after_step(batches[0], inner.num_samples or 0)[1])
