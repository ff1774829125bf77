"""The parts of a training run's checkpoint, besides model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rankwise.checkpoint import ModelState, OptimizerState, RandomState, Replicated
from rankwise.checkpoint.parts import as_part
from rankwise.data.contract import BaseLoader, Stateful
from rankwise.errors import ConfigError
from rankwise.metrics import Counters
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.output import on_host
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.train.step.exact import StepReport

__all__ = ["Progressed", "RunningMeans", "checked_parts", "training_parts"]

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


class RunningMeans:
    """Means by name since the last reduction, stored as a sum and a weight of this rank.

    Names may differ between ranks: a rank without samples has none.

    Attributes:
        waiting: losses and weights, alternating floats, that are summed on demand: the loop records a
            step without the cost of a call. They are summed in order, so the result is the same to the bit.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        # sums of Python numbers of one type only (on a CPU all of them), and the other sums
        self._plain: dict[str, float | int] = {}
        self._sums, self._others = Counters(), set[str]()
        self.waiting: list[float] = []

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a weighted sum and its weight. No synchronisation."""
        if self.waiting:
            self.add_waiting()
        plain, key, per = self._plain, f"sum {name}", f"weight {name}"
        before = plain.get(key)
        if type(before) is type(total) is type(weight) is type(plain.get(per)) is float:
            plain[key] = before + total
            plain[per] += weight
            return
        self._add(key, on_host(total))
        self._add(per, on_host(weight))

    def add_waiting(self) -> None:
        """Sum the waiting losses, in order of arrival."""
        held, self.waiting = self.waiting, []
        if not held:
            return
        plain, at = self._plain, 0
        total, weight = plain.get("sum loss"), plain.get("weight loss")
        if total is weight is None and "sum loss" not in self._others and "weight loss" not in self._others:
            total, weight, at = held[0], held[1], 2
        if type(total) is not float or type(weight) is not float:  # tensors were added before
            for at in range(0, len(held), 2):
                self.add("loss", held[at], held[at + 1])
            return
        # one by one: newer Pythons' `sum` compensates errors, so the result would depend on when it is called
        for number in held[at::2]:
            total += number
        for number in held[at + 1 :: 2]:
            weight += number
        plain["sum loss"], plain["weight loss"] = total, weight

    def add_all(self, loss: tuple[Any, Any], metrics: Mapping[str, tuple[Any, Any]]) -> None:
        """Add the losses and metrics of a step or a batch, each as (sum, weight)."""
        self.add("loss", *loss)
        for name, (total, weight) in metrics.items():
            self.add(name, total, weight)

    def add_step(self, report: StepReport) -> None:
        """Add the losses and metrics of one step."""
        self.add_all(report.loss, report.metrics)

    def _add(self, key: str, number: Any) -> None:
        before, kind = self._plain.get(key), type(number)
        if type(before) is kind and before is not None:
            self._plain[key] = before + number
        elif before is None and kind in (float, int) and key not in self._others:
            self._plain[key] = number
        else:
            self._others.add(key)
            if before is not None:
                self._sums.update({key: self._plain.pop(key)})
            self._sums.update({key: number})

    def reduce(self, world: World, *, reset: bool = True) -> dict[str, float]:
        """Return the means over all ranks; NaN if the weights sum to zero. Every rank calls it.

        Args:
            world: this rank's world.
            reset: set all sums to zero afterwards.
        """
        return self.reduce_noted(world, None, reset=reset)[0]

    def reduce_noted(self, world: World, note: Any, *, reset: bool = True) -> tuple[dict[str, float], list[Any]]:
        """Reduce like `reduce`, and return the notes of all ranks, by rank: small objects in the same collective."""
        self.add_waiting()
        if world.world_size == 1 and not self._others:
            sums, notes = dict(sorted(self._plain.items())), [note]
        else:
            gathered = world.all_gather_object((self.state_dict(), note))
            sums, notes = self._sums.read_states([state for state, _ in gathered]), [noted for _, noted in gathered]
        if reset:
            self._sums.reset()
            self._others.clear()
            self._plain.clear()
        means = dict[str, float]()
        for key, total in sums.items():
            kind, _, name = key.partition(" ")
            if kind == "sum":
                weight = sums[f"weight {name}"]
                means[name] = total / weight if weight else math.nan
        return means, notes

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums; waits for the device."""
        self.add_waiting()
        plain = {
            key: {"ints": 0, "floats": number} if type(number) is float else {"ints": number, "floats": None}
            for key, number in self._plain.items()
        }
        return {**self._sums.state_dict(), **plain}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sums."""
        self.waiting = []
        mixed = {key: cell for key, cell in state.items() if cell["floats"] is not None and cell["ints"]}
        self._sums.load_state_dict(mixed)
        self._others = set(mixed)
        plain = {key: cell for key, cell in state.items() if key not in mixed}
        self._plain = {key: cell["ints"] if cell["floats"] is None else cell["floats"] for key, cell in plain.items()}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the combined sums of several ranks."""
        return self._sums.merge_states(states)


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
