"""The parts of a training run that a checkpoint keeps, beside model and optimizer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rankwise.data.contract import BatchLoader
from rankwise.metrics import Mean, reduce
from rankwise.world import World

if TYPE_CHECKING:
    from rankwise.train.exact import StepReport

__all__ = ["LoaderPart", "Progressed", "RunningMeans", "seed_training"]


class Progressed:
    """How far the run is: optimizer steps and samples since its very first start."""

    scope: Literal["replicated"] = "replicated"

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_samples = 0

    def state_dict(self) -> dict[str, Any]:
        """Return both counts."""
        return {"num_steps": self.num_steps, "num_samples": self.num_samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over both counts."""
        self.num_steps = int(state["num_steps"])
        self.num_samples = int(state["num_samples"])


class LoaderPart:
    """The order's state of the last completed step, as a loader gives it."""

    scope: Literal["replicated"] = "replicated"

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's last state marked done."""
        return dict(self._loader.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the loader continue there."""
        self._loader.load_state_dict(state)


class RunningMeans:
    """Means since the last log step, by name; partial sums of this rank until they are reduced."""

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._means: dict[str, Mean] = {}

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Add a weighted sum and its weight. No synchronisation."""
        self._means.setdefault(name, Mean()).add(total, weight)

    def add_step(self, report: StepReport) -> None:
        """Add the losses and metrics of one step."""
        self.add("loss", *report.loss)
        for name, (total, weight) in report.metrics.items():
            self.add(name, total, weight)

    def reduce(self, world: World) -> dict[str, float]:
        """Return the means over all ranks and start anew; one collective, every rank calls it with equal names."""
        return {name: float(value) for name, value in reduce(self._means, world, reset=True).items()}

    def names(self) -> list[str]:
        """Return the names so far, sorted."""
        return sorted(self._means)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's partial sums."""
        return {name: mean.state_dict() for name, mean in self._means.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over partial sums."""
        self._means = {}
        for name, part in state.items():
            self._means[name] = Mean()
            self._means[name].load_state_dict(part)


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
