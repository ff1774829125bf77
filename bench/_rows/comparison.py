"""Compares several readers on the same rows, in interleaved rounds."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from _common.rounds import Rounds
from _common.spreads import Spread, spread

from _rows.process import ReaderProcess
from _rows.readers import KINDS
from _rows.task import Task

_CHECKED = 1  # requests or epochs whose contents are compared; they also warm every reader up


@dataclass(kw_only=True)
class Comparison(Rounds):
    """What the rounds of all readers cost.

    Attributes:
        title: which data and requests.
        layout: of the store that we read.
        task: what was read.
        count: requests, or epochs, per round.
        num_rows: rows per round.
        base: the reader of ours that others are compared with.
        imported_zarrs: readers in whose process zarrs was loaded.
    """

    title: str
    layout: str
    task: Task
    count: int
    num_rows: int
    base: str = "ours"
    imported_zarrs: set[str] = field(default_factory=set)

    def cpu_us(self, name: str) -> Spread:
        """CPU microseconds per row."""
        return spread([s / self.num_rows * 1e6 for s in self.cpu_s[name]])

    def rows_per_s(self, name: str) -> Spread:
        """Rows per second of wall time."""
        return spread([self.num_rows / s for s in self.wall_s[name]])

    def facts(self) -> dict[str, object]:
        """Everything that was measured, for JSON."""
        return {
            "title": self.title,
            "layout": self.layout,
            "run": self.task.run,
            "rows_per_round": self.num_rows,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "loads": self.loads,
        }


def compare(found: Comparison, names: list[str], processes: Mapping[str, ReaderProcess], rounds: int) -> None:
    """Let readers read the same rows in turn; refuses to time readers that return different ones."""
    check_equal(found, names, processes)
    shuffle = random.Random(0)
    for number in range(rounds):
        found.begin_round()
        for name in shuffle.sample(names, len(names)):
            first = _CHECKED + number * found.count
            cost = processes[KINDS[name].program].round(name, found.task, first, found.count)
            found.note(name, cost)
            found.imported_zarrs |= {name} if cost["imported"] else set()


def check_equal(found: Comparison, names: list[str], processes: Mapping[str, ReaderProcess]) -> None:
    """End the run if readers of one output return different rows."""
    digests: dict[str, dict[str, list[int]]] = {}
    for name in names:
        kind = KINDS[name]
        answer = processes[kind.program].round(name, found.task, 0, _CHECKED, digest=True)
        digests.setdefault(kind.output, {})[name] = answer["digest"]
    for output, of in digests.items():
        if len({tuple(digest) for digest in of.values()}) > 1:
            listing = "\n".join(f"  {name}: {digest}" for name, digest in of.items())
            sys.exit(f"the readers do not return the same {output} for {found.title}:\n{listing}")
