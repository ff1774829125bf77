"""A check's finding: ranks, parameter or sample, expected and actual value, and the solution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One error or suspicion; equal on all ranks.

    Attributes:
        check: name of the check.
        ranks: the ranks of the guard's world that it concerns; if a majority agrees, the others.
        where: parameters, samples, module or loader.
        wanted: the expected state.
        came: the actual state.
        mend: how to fix it.
        certain: whether it is certainly an error; else it is a suspicion, which is never raised.
        step: number of optimizer steps since the guard was created.
    """

    check: str
    ranks: tuple[int, ...]
    where: str
    wanted: str
    came: str
    mend: str
    certain: bool = True
    step: int = 0

    def __str__(self) -> str:
        place = f"after step {self.step}" if self.step > 0 else "before the first step"
        return (
            f"[{self.check}] {place}, {rank_text(self.ranks)}, {self.where}: {self.came}; wanted: {self.wanted}. "
            f"{self.mend}"
        )


def rank_text(ranks: Sequence[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def listed(names: Iterable[str], *, most: int = _MOST) -> str:
    """Return the first names, and how many there are if some are left out."""
    found = list(names)
    more = f", ... ({len(found)} in all)" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def differing_ranks(values: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the ranks whose value differs from the majority; all ranks if there is no majority."""
    common, votes = Counter(values).most_common(1)[0]
    if 2 * votes <= len(values):
        return tuple(range(len(values)))
    return tuple(rank for rank, value in enumerate(values) if value != common)
