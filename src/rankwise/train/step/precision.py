"""Half precision: autocast around the step function, and a loss scale on which all ranks agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import ConfigError
from rankwise.train.models.sharding import shards_state

if TYPE_CHECKING:
    import torch

    from rankwise.world import World

__all__ = ["LossScale", "Precision", "autocasting", "make_scaler"]

Precision = Literal["bf16", "fp16"]

_SMALLEST = 1e-6  # about 36 skipped steps in a row from 65536: no scale will work


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


class LossScale:
    """A scaler with the same decision about a step on every rank.

    Gradients of replicas are equal, including infinities, so all ranks decide alike. If a rank's optimizer has only a
    part of the gradient, ranks exchange their findings: otherwise some would step and some would not.

    Args:
        scaler: a `torch.amp.GradScaler`, equal on all ranks.
        optimizer: the optimizer that steps.
        world: this rank's world.
    """

    def __init__(self, scaler: torch.amp.GradScaler, optimizer: Any, world: World) -> None:
        self._scaler, self._optimizer, self._world = scaler, optimizer, world
        self._tells = world.world_size > 1 and shards_state(optimizer)

    @property
    def value(self) -> float:
        """The scale; waits for the device."""
        return float(self._scaler.get_scale())

    @property
    def is_lost(self) -> bool:
        """Whether the scale has become so small that no gradient will ever be finite."""
        return self.value < _SMALLEST

    def scaled(self, total: torch.Tensor) -> torch.Tensor:
        """Return the loss, scaled."""
        return self._scaler.scale(total)

    def unscale(self) -> bool:
        """Divide the gradients by the scale; return whether they are finite, the same on all ranks.

        Every rank calls it after `Window.finish` and before clipping.
        """
        self._scaler.unscale_(self._optimizer)
        found = self._scaler._found_inf_per_device(self._optimizer)  # noqa: SLF001  (torch's sharded scaler does so, too)
        overflowed = any(flag.item() for flag in found.values())
        if self._tells:
            overflowed = bool(self._world.all_reduce(overflowed, op="max"))
            for flag in found.values() if overflowed else ():
                flag.fill_(1.0)
        return not overflowed

    def step(self) -> None:
        """Step the optimizer, unless the gradients were not finite, and choose the next scale."""
        self._scaler.step(self._optimizer)
        self._scaler.update()
