"""What surrounds a pass: its precision; modes, buffers and random state stay as they were; each rank's random state."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankwise.checkpoint import RandomState
from rankwise.errors import ConfigError
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.world import World

if TYPE_CHECKING:
    from torch import nn

Precision = Literal["bf16", "fp16"]


def autocasting(step_fn: Any, precision: Precision | None, world: World) -> Any:
    """Return the step function under autocast to the precision; unchanged for None.

    Raises:
        ConfigError: there is no such precision.
    """
    if precision is None:
        return step_fn
    if precision not in ("bf16", "fp16"):
        raise ConfigError(f"precision must be 'bf16', 'fp16' or None, got {precision!r}")
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float16

    def cast_step(model: Any, batch: Any) -> Any:
        with torch.autocast(world.device.type, dtype=dtype):
            return step_fn(model, batch)

    return cast_step


def make_scaler(precision: Precision | None, world: World, scaler: Any = None) -> Any:
    """Return the given scaler, torch's own for fp16, None otherwise.

    Raises:
        ConfigError: the given object is not a scaler.
    """
    if scaler is None and precision == "fp16":
        import torch

        return torch.amp.GradScaler(world.device.type)
    if scaler is not None and not all(hasattr(scaler, name) for name in ("scale", "unscale_", "step", "update")):
        raise ConfigError(f"scaler= must be a torch.amp.GradScaler, got a {type(scaler).__name__}")
    return scaler


@contextmanager
def held_pass(model: nn.Module) -> Iterator[None]:
    """Run the stand-in of a rank without samples: it is not counted, and does not change this rank's buffers.

    Statistics over all ranks are still updated, with the samples of the others. Its gradients are set to zero before
    they are added up: weight 0 alone would not do, because 0 times an overflow is NaN.
    """
    import torch

    # fsdp's gradients pass by these: there an overflow of the stand-in is refused like one of a sample
    trained: list[Any] = [p for p in model.parameters() if p.requires_grad]
    cleared = [p.register_hook(torch.zeros_like) for p in trained]
    joined: list[Any] = [module for module in model.modules() if hasattr(module, "joins_ranks")]
    with kept_buffers(model, but={id(b) for module in joined for b in module.buffers()}):
        for module in joined:
            module.counts = False
        try:
            yield
        finally:
            for hook in cleared:
                hook.remove()
            for module in joined:
                module.counts = True


@contextmanager
def kept_buffers(model: nn.Module, but: Collection[int] = ()) -> Iterator[None]:
    """Restore the model's buffers at the end (running statistics, counters), except some, by id.

    A forward pass may change a buffer in place, or put another tensor in its place (``self.mean = 0.9 * self.mean``).
    """
    import torch

    saved = [
        (held, name, buffer, None if buffer is None else buffer.detach().clone())
        for held in (part._buffers for part in unwrapped(model).modules())  # noqa: SLF001  (also those that are None)
        for name, buffer in held.items()
        if id(buffer) not in but
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for held, name, buffer, value in saved:
                held[name] = buffer
                if buffer is not None and value is not None:
                    buffer.copy_(value)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and each of its parts back into its own at the end: frozen ones stay frozen."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        module.train(modes[0][1])  # it may be overridden, to do more than to set the flag
        for part, is_training in modes:
            part.training = is_training


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and torch at the end, like a checkpoint."""
    generators = RandomState()
    saved = generators.state_dict()
    try:
        yield
    finally:
        generators.load_state_dict(saved)


def seed_training(world: World, *key: int | str) -> None:
    """Seed the global generators of this rank from (seed, key, rank).

    Models are built from equal seeds on all ranks; from the first step on each rank draws its own stream, otherwise
    all ranks would drop the same units and add the same noise.
    """
    import torch

    draws = world.generator("train", *key, world.rank).integers(0, 2**31, size=3)
    random.seed(int(draws[0]))
    np.random.seed(int(draws[1]))  # noqa: NPY002  (the legacy generator is what users' code draws from)
    torch.manual_seed(int(draws[2]))
