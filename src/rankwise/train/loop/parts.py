"""The parts of a training run's checkpoint, besides model and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from rankwise.checkpoint import ModelState, OptimizerState, RandomState, Replicated
from rankwise.checkpoint.parts import as_part
from rankwise.data.contract import BaseLoader, Stateful
from rankwise.errors import ConfigError
from rankwise.train.models.wrapped_models import unwrapped

if TYPE_CHECKING:
    import torch
    from torch import nn

_OWN_PARTS = {"model", "optimizer", "order", "stream", "random", "scheduler", "scaler"} | {
    "progress", "recent_means", "epoch_means"
}  # fmt: skip


class Progressed:
    """Progress of the run: steps and samples since its first start, skipped samples, and why a hook ended it."""

    scope: Literal["replicated"] = "replicated"

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_samples = 0
        self.num_lost = 0
        self.stopped = ""

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        counts = {"num_steps": self.num_steps, "num_samples": self.num_samples, "num_lost": self.num_lost}
        return {**counts, "stopped": self.stopped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; checkpoints of earlier versions lack the last two."""
        self.num_steps = int(state["num_steps"])
        self.num_samples = int(state["num_samples"])
        self.num_lost = int(state.get("num_lost", 0))
        self.stopped = str(state.get("stopped", ""))


def checked_parts(parts: Mapping[str, Any] | None) -> dict[str, Stateful]:
    """Return the user's parts in the form that a checkpoint needs.

    Raises:
        ConfigError: a name is reserved, or a part does not say how to treat it at another world size.
    """
    if taken := sorted(_OWN_PARTS & (parts or {}).keys()):
        raise ConfigError(f"parts= names {', '.join(taken)}, which the trainer uses itself: choose another name")
    return {name: as_part(name, part) for name, part in (parts or {}).items()}


def training_parts(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    train: BaseLoader,
    more: Mapping[str, Stateful],
    *,
    scaler: Any = None,
) -> dict[str, Stateful]:
    """Return the parts of a training run's checkpoint, without the trainer's own numbers."""
    parts: dict[str, Stateful] = {
        "model": ModelState(unwrapped(model)),
        "optimizer": OptimizerState(optimizer, unwrapped(model)),
        "order": Replicated(train),
        "random": RandomState(),
    }
    if train.rank_state is not None:
        parts["stream"] = train.rank_state
    if scheduler is not None:
        parts["scheduler"] = Replicated(scheduler)
    if scaler is not None:
        parts["scaler"] = Replicated(scaler)
    return {**parts, **more}
