"""Loaders beside a step that takes as long as a batch takes to load: how much longer is an epoch than its longer part?

The step sleeps, as one does that waits for its device: it leaves the processor to the loader, which a machine with few
cores needs for a fair answer.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from _common.machine import load
from _common.printing import span_of
from _common.statistics_of import Spread, spread

from _rows.process import ReaderProcess
from _rows.readers import KINDS
from _rows.task import Task


@dataclass(kw_only=True)
class Beside:
    """What epochs with and without steps took, in seconds of wall time.

    Attributes:
        title: which data and requests.
        load_s: for each loader, epochs without steps.
        steps_s: the steps of the epochs with them, together.
        both_s: epochs with steps.
        loads: load average before each round.
    """

    title: str
    load_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    both_s: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def stretch(self, name: str) -> Spread:
        """An epoch with steps as a multiple of the longer of loading and steps, round by round."""
        parts = zip(self.both_s[name], self.load_s[name], self.steps_s[name], strict=True)
        return spread([both / max(load_s, steps_s) for both, load_s, steps_s in parts])

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, for JSON."""
        return {name: getattr(self, name) for name in ("title", "load_s", "steps_s", "both_s", "loads")}

    def print(self) -> None:
        """Print one row for each loader: medians with quartiles."""
        print(f"\n{self.title}, beside a step as long as a batch; {len(self.loads)} rounds; load {span_of(self.loads)}")
        print("| loader | epoch alone, s | its steps, s | both, s | both / the longer |")
        print("|---|---|---|---|---|")
        for name in self.both_s:
            seen = [spread(of[name]) for of in (self.load_s, self.steps_s, self.both_s)]
            print(f"| {KINDS[name].title} | {seen[0]} | {seen[1]} | {seen[2]} | {self.stretch(name)} |")
        print(end="", flush=True)


def run_beside(title: str, task: Task, names: list[str], processes: Mapping[str, ReaderProcess], rounds: int) -> Beside:
    """Let loaders read an epoch alone and then one with steps of the length that a batch of it took, in turn."""
    found, shuffle = Beside(title=title), random.Random(0)
    for name in names:
        found.load_s[name], found.steps_s[name], found.both_s[name] = [], [], []
        processes[KINDS[name].program].round(name, task, 0, 1)  # warms up
    for number in range(rounds):
        found.loads.append(load())
        for name in shuffle.sample(names, len(names)):
            process = processes[KINDS[name].program]
            alone = process.round(name, task, 1 + 2 * number, 1)
            step_s = alone["wall_s"] / alone["num_batches"]
            both = process.round(name, task, 2 + 2 * number, 1, step_s=step_s)
            found.load_s[name].append(alone["wall_s"])
            found.steps_s[name].append(both["steps_s"])
            found.both_s[name].append(both["wall_s"])
    return found
