"""Goals of a benchmark, and whether a run met them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from _common.spreads import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One goal and what was seen.

    Attributes:
        goal: in words.
        seen: the number, with its spread.
        met: whether the median meets it; None if it says nothing here (a wall time on a busy machine).
        note: why it says nothing, or how it was measured.
    """

    goal: str
    seen: str
    met: bool | None
    note: str = ""

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "open"}[self.met]
        return f"  {word:7}{self.goal}: {self.seen}{f' ({self.note})' if self.note else ''}"

    def facts(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {"goal": self.goal, "seen": self.seen, "met": self.met, "note": self.note}


def at_most(goal: str, seen: float, bound: float, shown: Callable[[float], str]) -> Verdict:
    """Return the verdict on a number that must not be larger than a bound."""
    return Verdict(goal=f"{goal} <= {shown(bound)}", seen=shown(seen), met=seen <= bound)


def at_least(goal: str, seen: Spread, bound: float, note: str = "") -> Verdict:
    """Return the verdict on a ratio that must not be smaller; with a note, not reaching it says nothing."""
    met = seen.median >= bound
    return Verdict(goal=f"{goal} >= {bound:g}", seen=str(seen), met=None if note and not met else met, note=note)
