"""CPU and wall time of several readers by round, and their ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from _common.machine import load
from _common.spreads import Spread, ratios


@dataclass(kw_only=True)
class Rounds:
    """Costs of interleaved rounds.

    Attributes:
        cpu_s: for each reader, CPU seconds of each round, all threads and child processes.
        wall_s: the same in wall time.
        loads: load average before each round.
    """

    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    wall_s: dict[str, list[float]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def begin_round(self) -> None:
        """Note the load."""
        self.loads.append(load())

    def note(self, name: str, cost: Mapping[str, float]) -> None:
        """Note what a round of a reader cost."""
        self.cpu_s.setdefault(name, []).append(cost["cpu_s"])
        self.wall_s.setdefault(name, []).append(cost["wall_s"])

    def cpu_ratio(self, above: str, below: str) -> Spread | None:
        """CPU time of one reader as a multiple of another's, round by round; None if one of them did not run."""
        return _ratio(self.cpu_s, above, below)

    def wall_ratio(self, above: str, below: str) -> Spread | None:
        """The same in wall time."""
        return _ratio(self.wall_s, above, below)


def _ratio(seconds: Mapping[str, list[float]], above: str, below: str) -> Spread | None:
    return ratios(seconds[above], seconds[below]) if {above, below} <= set(seconds) else None
