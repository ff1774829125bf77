"""The parts of a training run that a checkpoint keeps, beside model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rankwise.checkpoint.parts import as_part
from rankwise.data.contract import Stateful
from rankwise.errors import ConfigError
from rankwise.metrics import Counters
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.train.exact import StepReport

__all__ = ["Progressed", "RunningMeans", "checked_parts"]

_OWN_PARTS = {"model", "optimizer", "order", "stream", "random", "scheduler", "scaler"} | {
    "progress", "recent_means", "epoch_means"
}  # fmt: skip


class Progressed:
    """How far the run is: steps and samples since its very first start, samples left out, and why a hook ended it."""

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
        """Take over the counts; checkpoints of earlier versions lack the last two."""
        self.num_steps = int(state["num_steps"])
        self.num_samples = int(state["num_samples"])
        self.num_lost = int(state.get("num_lost", 0))
        self.stopped = str(state.get("stopped", ""))


class RunningMeans:
    """Means by name since the last reduction: a sum and a weight of this rank for each, until they are reduced.

    Names may differ between ranks: one without samples has met none.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._sums = Counters()

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a weighted sum and its weight. No synchronisation."""
        self._sums.update({f"sum {name}": _number(total), f"weight {name}": _number(weight)})

    def add_all(self, loss: tuple[Any, Any], metrics: Mapping[str, tuple[Any, Any]]) -> None:
        """Add the losses and metrics of a step or a batch, each as (sum, weight)."""
        self.add("loss", *loss)
        for name, (total, weight) in metrics.items():
            self.add(name, total, weight)

    def add_step(self, report: StepReport) -> None:
        """Add the losses and metrics of one step."""
        self.add_all(report.loss, report.metrics)

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN where the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: start anew afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce as `reduce`, and return the notes of all ranks too, by rank: small objects that travel along."""
        gathered = world.all_gather_object((self._sums.state_dict(), note))
        if reset:
            self._sums.reset()
        sums = self._sums.read_states([state for state, _ in gathered])
        names = [key.removeprefix("sum ") for key in sums if key.startswith("sum ")]
        weights = {name: sums[f"weight {name}"] for name in names}
        means = {name: sums[f"sum {name}"] / weights[name] if weights[name] else math.nan for name in names}
        return means, [noted for _, noted in gathered]

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        return self._sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over sums."""
        self._sums.load_state_dict(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sums of several ranks together."""
        return self._sums.merge_states(states)


def _number(value: Any) -> Any:
    """Return a scalar in host memory as a number, which adds up much faster; anything else as it is."""
    on_host = getattr(value, "ndim", None) == 0 and getattr(getattr(value, "device", None), "type", None) == "cpu"
    return value.item() if on_host else value


def checked_parts(parts: Mapping[str, Any] | None) -> dict[str, Stateful]:
    """Return the user's parts as a checkpoint takes them.

    Raises:
        ConfigError: a name is the trainer's own, or a part does not say how it survives another world size.
    """
    if taken := sorted(_OWN_PARTS & (parts or {}).keys()):
        raise ConfigError(f"parts= names {', '.join(taken)}, which the trainer keeps itself: give another name")
    return {name: as_part(name, part) for name, part in (parts or {}).items()}
