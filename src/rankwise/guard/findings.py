"""What a check found: which ranks, which parameter or sample, what was wanted, what came, and the mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Finding", "listed", "odd_ranks", "rank_text"]

_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or looks so; equal on all ranks.

    Attributes:
        check: name of the check.
        ranks: the ranks of the guard's world that it concerns, the odd ones out where a majority agrees.
        where: parameters, samples, module or loader.
        wanted: what should be.
        came: what is.
        mend: what to do about it.
        certain: whether it is wrong for sure; else it is a suspicion, and never raised.
        step: optimizer steps since the guard was made, when it was found.
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


def listed(names: Iterable[str]) -> str:
    """Return the first of the names, and how many there are if some are left out."""
    found = list(names)
    more = f", ... ({len(found)} in all)" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more


def odd_ranks(values: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the ranks whose value is not that of the majority; all of them where there is no majority."""
    common, votes = Counter(values).most_common(1)[0]
    if 2 * votes <= len(values):
        return tuple(range(len(values)))
    return tuple(rank for rank, value in enumerate(values) if value != common)
