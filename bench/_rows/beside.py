"""Loaders beside a step that takes as long as a batch takes to load: how much longer is an epoch than its longer part?

The step sleeps, as one does that waits for its device: it leaves the processor to the loader, which a machine with few
cores needs for a fair answer. Epochs are read in a row, as a job does: the first one, which nothing was read ahead of,
the ones after it, and a last one, which does not count, as nothing is read ahead at its end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

from _common.machine import load
from _common.printing import span_of
from _common.statistics_of import Spread, ratios, spread

from _rows.process import ReaderProcess
from _rows.readers import KINDS
from _rows.task import Task

EPOCHS = 4


@dataclass(kw_only=True)
class Beside:
    """What epochs with and without steps took, in seconds of wall time.

    Attributes:
        title: which data and requests.
        load_s: for each loader, epochs without steps.
        steps_s: the steps of an epoch with them, together.
        first_s: first epochs with steps.
        later_s: those after them.
        loads: load average before each round.
    """

    title: str
    load_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    first_s: dict[str, list[float]] = field(default_factory=dict)
    later_s: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def add(self, name: str, alone: Mapping[str, Any], both: Mapping[str, Any]) -> None:
        """Note a round of a loader: what its process said of epochs without steps, and with them."""
        _, *alone_s = epochs_s(alone["ends_s"])
        first_s, *later_s = epochs_s(both["ends_s"])
        found = (mean(alone_s), both["steps_s"] / EPOCHS, first_s, mean(later_s))
        for of, value in zip((self.load_s, self.steps_s, self.first_s, self.later_s), found, strict=True):
            of.setdefault(name, []).append(value)

    def stretch(self, name: str, *, first: bool = False) -> Spread:
        """An epoch with steps, or a first one, as a multiple of the longer of loading and steps, round by round."""
        longer = [max(parts) for parts in zip(self.load_s[name], self.steps_s[name], strict=True)]
        return ratios((self.first_s if first else self.later_s)[name], longer)

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, for JSON."""
        return {name: getattr(self, name) for name in ("title", "load_s", "steps_s", "first_s", "later_s", "loads")}

    def print(self) -> None:
        """Print one row for each loader: medians with quartiles."""
        print(f"\n{self.title}, beside a step as long as a batch; {len(self.loads)} rounds; load {span_of(self.loads)}")
        print("| loader | epoch alone, s | its steps, s | both, s | both / the longer | the same, first epoch |")
        print("|---|---|---|---|---|---|")
        for name in self.later_s:
            seen = [spread(of[name]) for of in (self.load_s, self.steps_s, self.later_s)]
            stretches = f"{self.stretch(name)} | {self.stretch(name, first=True)}"
            print(f"| {KINDS[name].title} | {seen[0]} | {seen[1]} | {seen[2]} | {stretches} |")
        print(end="", flush=True)


def epochs_s(ends_s: list[float]) -> list[float]:
    """Return how long each of the epochs took, but for the last one, from when each of their batches was done with."""
    per_epoch, odd = divmod(len(ends_s), EPOCHS)
    assert not odd, f"{len(ends_s)} batches are not {EPOCHS} epochs"
    return [after - before for before, after in pairwise([0.0, *ends_s[per_epoch - 1 : -1 : per_epoch]])]


def run_beside(title: str, task: Task, names: list[str], processes: Mapping[str, ReaderProcess], rounds: int) -> Beside:
    """Let loaders read epochs alone and then with steps of the length that a batch of them took, in turn."""
    found, shuffle = Beside(title=title), random.Random(0)
    for name in names:
        processes[KINDS[name].program].round(name, task, 0, 1)  # warms up
    for number in range(rounds):
        found.loads.append(load())
        for name in shuffle.sample(names, len(names)):
            process, first = processes[KINDS[name].program], 1 + 2 * EPOCHS * number
            alone = process.round(name, task, first, EPOCHS)
            _, *alone_s = epochs_s(alone["ends_s"])
            step_s = mean(alone_s) / (len(alone["ends_s"]) / EPOCHS)
            found.add(name, alone, process.round(name, task, first + EPOCHS, EPOCHS, step_s=step_s))
    return found
