"""How well loading overlaps with steps: the length of an epoch relative to the longer of loading and steps.

A step sleeps for as long as a batch takes to load, like one that waits for its device. So the loader has the cores to
itself, which is needed for a fair result on a machine with few cores. A run reads several epochs: the first one starts
without prefetched batches; the last one is not counted, because nothing is prefetched at its end. Loaders with
`start_prefetch` read a first epoch once more, started some time before the clock, as if a model were built meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import mean
from typing import Any

from _common.header import span_of
from _common.machine import load
from _common.spreads import Spread, ratios, spread

from _rows.process import ReaderProcess
from _rows.readers import KINDS
from _rows.task import Task

EPOCHS = 4
EARLY_S = 0.5
_EARLY_EPOCHS = 2


@dataclass(kw_only=True)
class Overlap:
    """What epochs with and without steps took, in seconds of wall time.

    Attributes:
        title: which data and requests.
        load_s: for each loader, epochs without steps.
        steps_s: the steps of an epoch with them, together.
        first_s: first epochs with steps.
        later_s: those after them.
        early_s: first epochs with steps of loaders that began `EARLY_S` before.
        waits_s: what the first batch of a first epoch was waited for.
        early_waits_s: the same, of loaders that began before.
        loads: load average before each round.
    """

    title: str
    load_s: dict[str, list[float]] = field(default_factory=dict)
    steps_s: dict[str, list[float]] = field(default_factory=dict)
    first_s: dict[str, list[float]] = field(default_factory=dict)
    later_s: dict[str, list[float]] = field(default_factory=dict)
    early_s: dict[str, list[float]] = field(default_factory=dict)
    waits_s: dict[str, list[float]] = field(default_factory=dict)
    early_waits_s: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def add(self, name: str, alone: Mapping[str, Any], both: Mapping[str, Any]) -> None:
        """Note a round of a loader: what its process said of epochs without steps, and with them."""
        _, *alone_s = epochs_s(alone["ends_s"], EPOCHS)
        first_s, *later_s = epochs_s(both["ends_s"], EPOCHS)
        wait_s = _wait_s(both)
        found = (mean(alone_s), both["steps_s"] / EPOCHS, first_s, mean(later_s), wait_s)
        kinds = (self.load_s, self.steps_s, self.first_s, self.later_s, self.waits_s)
        for of, value in zip(kinds, found, strict=True):
            of.setdefault(name, []).append(value)

    def add_early(self, name: str, both: Mapping[str, Any]) -> None:
        """Note what a loader that began early said of `_EARLY_EPOCHS` epochs with steps."""
        (first_s,) = epochs_s(both["ends_s"], _EARLY_EPOCHS)
        self.early_s.setdefault(name, []).append(first_s)
        self.early_waits_s.setdefault(name, []).append(_wait_s(both))

    def stretch(self, name: str, of: Mapping[str, list[float]] | None = None) -> Spread:
        """An epoch with steps as a multiple of the longer of loading and steps, round by round.

        Args:
            name: of the loader.
            of: `first_s` or `early_s`; None = `later_s`.
        """
        longer = [max(parts) for parts in zip(self.load_s[name], self.steps_s[name], strict=True)]
        return ratios((self.later_s if of is None else of)[name], longer)

    def facts(self) -> dict[str, Any]:
        """Everything that was measured, for JSON."""
        return {"begun_early_by_s": EARLY_S, **asdict(self)}

    def print(self) -> None:
        """Print one row for each loader: medians with quartiles; and what its first epochs wait for."""
        print(f"\n{self.title}, with steps as long as a batch; {len(self.loads)} rounds; load {span_of(self.loads)}")
        print("| loader | epoch alone, s | its steps, s | both, s | both / the longer |")
        print("|---|---|---|---|---|")
        for name in self.later_s:
            seen = [spread(of[name]) for of in (self.load_s, self.steps_s, self.later_s)]
            print(f"| {KINDS[name].title} | {seen[0]} | {seen[1]} | {seen[2]} | {self.stretch(name)} |")
        print(
            f"\nThe first epoch of a job; begun early = start_prefetch() {EARLY_S} s before, for the model to be made"
        )
        print("| loader | both / the longer | first batch after, s | begun early: both / the longer | after, s |")
        print("|---|---|---|---|---|")
        for name in self.first_s:
            first = f"{self.stretch(name, self.first_s)} | {spread(self.waits_s[name])}"
            early = "| | |"
            if name in self.early_s:
                early = f"| {self.stretch(name, self.early_s)} | {spread(self.early_waits_s[name])} |"
            print(f"| {KINDS[name].title} | {first} {early}")
        print(end="", flush=True)


def epochs_s(ends_s: list[float], count: int) -> list[float]:
    """Return how long each of the epochs took, but for the last one, from when each of their batches was done with."""
    per_epoch, odd = divmod(len(ends_s), count)
    assert not odd, f"{len(ends_s)} batches are not {count} epochs"
    return [after - before for before, after in pairwise([0.0, *ends_s[per_epoch - 1 : -1 : per_epoch]])]


def _wait_s(both: Mapping[str, Any]) -> float:
    """How long the first batch was waited for: until its step ended, but for a step, which may last a little longer."""
    return max(0.0, both["ends_s"][0] - both["steps_s"] / len(both["ends_s"]))


def run_overlap(
    title: str, task: Task, names: list[str], processes: Mapping[str, ReaderProcess], rounds: int
) -> Overlap:
    """Let loaders read epochs alone and then with steps of the length that a batch of them took, in turn."""
    found, shuffle = Overlap(title=title), random.Random(0)
    for name in names:
        processes[KINDS[name].program].round(name, task, 0, 1)  # warms up
    for number in range(rounds):
        found.loads.append(load())
        for name in shuffle.sample(names, len(names)):
            process, first = processes[KINDS[name].program], 1 + (2 * EPOCHS + _EARLY_EPOCHS) * number
            alone = process.round(name, task, first, EPOCHS)
            _, *alone_s = epochs_s(alone["ends_s"], EPOCHS)
            step_s = mean(alone_s) / (len(alone["ends_s"]) / EPOCHS)
            found.add(name, alone, process.round(name, task, first + EPOCHS, EPOCHS, step_s=step_s))
            if KINDS[name].begins_early:
                early = {"step_s": step_s, "early_s": EARLY_S}
                found.add_early(name, process.round(name, task, first + 2 * EPOCHS, _EARLY_EPOCHS, **early))
    return found
