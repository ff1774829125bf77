"""A moving average of the weights, for evaluation and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from rankwise.checkpoint.parts import plain_name
from rankwise.errors import CheckpointError, ConfigError
from rankwise.train.models.sharding import is_sharded
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.output import widened

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.train.step.ledger import StepReport


class EMA:
    """The exponential moving average of a model's parameters; equal on all ranks without communication.

    In a loop of your own::

        ema = EMA(model, decay=0.999)
        for batches in loader:
            ema.update(step(batches))
        with ema.applied():
            evaluate(model, val, step_fn)

    It is a hook of the `Trainer` and a part of its checkpoints: ``Trainer(hooks=[ema])``. Skipped steps
    (without weight, or after an overflow) do not count. Floating-point parameters are averaged; buffers, for example
    running statistics, stay the model's own.

    Args:
        model: what `prepare` returned, or any module that is not sharded.
        decay: weight of the old average in each update, 0 <= decay < 1.
        ramp: limit the decay at the n-th update to (1 + n) / (10 + n), so that the first weights are soon forgotten.

    Attributes:
        num_updates: number of counted steps.

    Raises:
        ConfigError: the decay is out of range, or the model is sharded.
    """

    scope: Literal["replicated"] = "replicated"

    def __init__(self, model: nn.Module, *, decay: float = 0.999, ramp: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"decay must be at least 0 and below 1, got {decay}")
        if is_sharded(model):
            raise ConfigError(
                "the model is sharded (strategy='fsdp'), but EMA needs whole weights: use 'ddp' or 'zero1'"
            )
        self.num_updates = 0
        self._decay, self._ramp = decay, ramp
        named = unwrapped(model).named_parameters()
        self._model = {plain_name(name): p for name, p in named if p.is_floating_point() or p.is_complex()}
        # no narrower than float32: in bfloat16 an average that moves by less than 1/256 of itself stays where it is
        self._averages = {name: widened(p.detach()).clone() for name, p in self._model.items()}

    def update(self, report: StepReport | None = None) -> None:
        """Update the average after a step; call it on every rank.

        Args:
            report: of the step; None counts it in any case.
        """
        if report is not None and (report.overflowed or not report.weight):
            return
        import torch

        self._follow()
        self.num_updates += 1
        ramped = (1 + self.num_updates) / (10 + self.num_updates)
        decay = min(self._decay, ramped) if self._ramp else self._decay
        with torch.no_grad():
            weights = [widened(p.detach()) for p in self._model.values()]
            torch._foreach_lerp_(list(self._averages.values()), weights, 1 - decay)

    def fit_start(self, trainer: Any) -> None:
        """Hook: start from the weights that the training starts with; refuse to train a model with other weights.

        Raises:
            ConfigError: the trainer's model is another one, or is sharded.
        """
        if not self.num_updates:  # weights may have come since it was made: by init_from=, or those of rank 0
            for average, p in zip(self._averages.values(), self._model.values(), strict=True):
                average.copy_(p.detach())
        trained = {id(p) for p in trainer.model.parameters()}
        if is_sharded(trainer.model) or not all(id(p) in trained for p in self._model.values()):
            raise ConfigError(
                "EMA averages a model that is not the trained one, or a sharded one (strategy='fsdp'), whose whole "
                "weights it does not have: make it from the model that the Trainer gets, and use 'ddp' or 'zero1'"
            )

    def step_end(self, _: Any, report: StepReport) -> None:
        """Hook: call `update`."""
        self.update(report)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averages, and restore its own weights at the end. Take no step in between."""
        import torch

        self._follow()
        mine: list[torch.Tensor] = list(self._model.values())
        averages = list(self._averages.values())
        kept = [p.detach().clone() for p in mine]
        with torch.no_grad():
            torch._foreach_copy_(mine, averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(mine, kept)

    def _follow(self) -> None:
        """Move the averages to the model's current device."""
        for name, p in self._model.items():
            if self._averages[name].device == p.device:
                return
            self._averages[name] = self._averages[name].to(p.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by the plain module's names, and the number of updates."""
        return {"averages": dict(self._averages), "num_updates": self.num_updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore averages.

        Raises:
            CheckpointError: they belong to another model.
        """
        averages: Mapping[str, torch.Tensor] = state["averages"]
        wanted = {name: list(p.shape) for name, p in self._averages.items()}
        given = {name: list(tensor.shape) for name, tensor in averages.items()}
        if found := {name: [wanted.get(name), shape] for name, shape in given.items() if wanted.get(name) != shape}:
            raise CheckpointError(f"the averages belong to another model; shapes here and there, by name: {found}")
        if missing := sorted(wanted.keys() - averages.keys()):
            raise CheckpointError(f"the averages belong to another model: none are stored for {', '.join(missing)}")
        for name, value in averages.items():
            self._averages[name].copy_(value)
        self.num_updates = int(state["num_updates"])
