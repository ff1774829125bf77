"""Compares several readers on the same batches, in interleaved rounds."""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from _common.rounds import Rounds
from _common.spreads import Spread, spread

from _crops.process import ReaderProcess
from _crops.task import Task

_CHECKED = 2  # batches whose contents are compared; they also warm every reader up


@dataclass(kw_only=True)
class Comparison(Rounds):
    """What the rounds of all readers cost.

    Attributes:
        title: which data and crops.
        task: what was read.
        batches: batches per round.
        failed: readers that could not run, and why.
    """

    title: str
    task: Task
    batches: int
    failed: dict[str, str] = field(default_factory=dict)

    def cpu_ms(self, name: str) -> Spread:
        """CPU milliseconds per batch."""
        return spread([s / self.batches * 1e3 for s in self.cpu_s[name]])

    def wall_ms(self, name: str) -> Spread:
        """Wall milliseconds per batch."""
        return spread([s / self.batches * 1e3 for s in self.wall_s[name]])

    def crops_per_s(self, name: str) -> Spread:
        """Crops per second of wall time."""
        return spread([self.batches * self.task.size / s for s in self.wall_s[name]])

    def voxels_per_crop(self) -> int:
        """Voxels of one crop."""
        return int(np.prod(self.task.crop))

    def facts(self) -> dict[str, object]:
        """Everything that was measured, for JSON."""
        return {
            "title": self.title,
            "crop": self.task.crop,
            "batch": self.task.size,
            "where": self.task.where,
            "batches_per_round": self.batches,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "failed": self.failed,
            "loads": self.loads,
        }


def compare(title: str, task: Task, names: list[str], *, rounds: int, batches: int) -> Comparison:
    """Let readers read the same batches in turn; refuses to time readers that return different bytes."""
    found = Comparison(title=title, task=task, batches=batches)
    with ExitStack() as stack:
        processes = {name: stack.enter_context(ReaderProcess(name, task)) for name in names}
        _check_equal(processes, found)
        shuffle = random.Random(0)
        for number in range(rounds):
            found.begin_round()
            for name in shuffle.sample(list(processes), len(processes)):
                cost = processes[name].round(_CHECKED + number * batches, batches)
                found.note(name, cost)
    return found


def _check_equal(processes: dict[str, ReaderProcess], found: Comparison) -> None:
    digests = {}
    for name in list(processes):
        try:
            digests[name] = processes[name].round(0, _CHECKED, digest=True)["digest"]
        except RuntimeError as error:
            found.failed[name] = str(error)
            del processes[name]
    if len({tuple(digest) for digest in digests.values()}) > 1:
        listing = "\n".join(f"  {name}: {digest}" for name, digest in digests.items())
        sys.exit(f"the readers do not return the same bytes for {found.title}:\n{listing}")
