"""The ranks beside each other: which collective is which, who was waited for, and how far their clocks are apart."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.diagnose.profile.parts import StepParts
from rankwise.diagnose.profile.trace import Collective, Trace

__all__ = ["Matching", "Straggler", "find_straggler", "match_collectives", "scores"]

_MIN_STEPS = 4  # below that, being the last one each time may be chance
_OFTEN = 0.75
_LATE = 0.10  # of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Which collectives of the ranks belong together.

    Attributes:
        groups: each collective, as the ranks that joined saw it: {rank: its collective}.
        unmatched: how many have no partner.
        offsets_ns: what to take from each rank's clock to get rank 0's, by the ends of collectives.
    """

    groups: list[dict[int, Collective]]
    unmatched: int
    offsets_ns: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The rank that the others wait for.

    Attributes:
        rank: which.
        score: the median rank's time to the first ready bucket / this one's, below 1.
        last_share: share of the steps in which it was the last to be ready.
        lag_ns: how much later than the median rank it is ready, median over the steps.
    """

    rank: int
    score: float
    last_share: float
    lag_ns: int


def match_collectives(traces: Sequence[Trace]) -> Matching:
    """Find the collectives that belong together and note in each how long its rank waited there.

    The n-th of an operation and group on one rank is the n-th on the others. Where the ranks saw different numbers of
    them, the count begins anew with every step, and what does not come out even is left alone. The rank that came last
    waits for nobody, so the shortest duration of all ranks is the transfer: that needs no common clock.
    """
    sides = [trace.rank or 0 for trace in traces]
    lists: dict[tuple[str, str], dict[int, list[tuple[int, Collective]]]] = defaultdict(dict)
    for rank, trace in zip(sides, traces, strict=True):
        for found in trace.collectives:
            number = next((n for n, start, end in trace.steps if start <= found.start < end), -1)
            lists[found.group, found.name].setdefault(rank, []).append((number, found))
    groups: list[dict[int, Collective]] = []
    unmatched = 0
    for found_by in lists.values():
        if len({len(items) for items in found_by.values()}) == 1:
            pieces = [{rank: [c for _, c in items] for rank, items in found_by.items()}]
        else:
            numbers = sorted({number for items in found_by.values() for number, _ in items})
            pieces = [{rank: [c for n, c in items if n == at] for rank, items in found_by.items()} for at in numbers]
        for piece in pieces:
            if len(piece) == 1 or len({len(items) for items in piece.values()}) > 1:
                unmatched += sum(map(len, piece.values()))
                continue
            groups += [dict(zip(piece, row, strict=True)) for row in zip(*piece.values(), strict=True)]
    for group in groups:
        transfer = min(found.end - found.start for found in group.values())
        for found in group.values():
            found.wait = found.end - found.start - transfer
    return Matching(groups=groups, unmatched=unmatched, offsets_ns=_offsets(traces, groups))


def _offsets(traces: Sequence[Trace], groups: Sequence[dict[int, Collective]]) -> dict[int, int]:
    """Return how far each clock is ahead of the lowest rank's: a collective ends on all ranks at once."""
    bases = {trace.rank or 0: trace.base_ns for trace in traces}
    first = min(bases)
    apart: dict[int, list[int]] = defaultdict(list)
    for group in groups:
        if first in group:
            for rank, found in group.items():
                apart[rank].append(found.end + bases[rank] - group[first].end - bases[first])
    return {rank: round(statistics.median(found)) for rank, found in apart.items()}


def _ready_by_step(steps: dict[int, list[StepParts]]) -> list[dict[int, int]]:
    by_number: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, mine in steps.items():
        for step in mine:
            if step.ready is not None:
                by_number[step.number][rank] = step.ready
    return [row for _, row in sorted(by_number.items()) if len(row) == len(steps) > 1]


def scores(steps: dict[int, list[StepParts]]) -> dict[int, tuple[float, float, int]]:
    """Return for each rank: its score, the share of steps in which it was last, its median lag in nanoseconds.

    The score of a step is the median rank's time to the first ready bucket divided by this rank's. Of an even number
    of ranks the faster one of the middle counts, so that one of two can lag behind the other.
    """
    rows = _ready_by_step(steps)
    found = {}
    for rank in steps if rows else ():
        middles = [statistics.median_low(row.values()) for row in rows]
        ratios = [middle / max(1, row[rank]) for middle, row in zip(middles, rows, strict=True)]
        last = sum(row[rank] == max(row.values()) for row in rows) / len(rows)
        lag = statistics.median(row[rank] - middle for middle, row in zip(middles, rows, strict=True))
        found[rank] = (statistics.median(ratios), last, round(lag))
    return found


def find_straggler(steps: dict[int, list[StepParts]]) -> Straggler | None:
    """Return the rank that keeps the others waiting, None where none does so in most steps and by enough to matter."""
    found = scores(steps)
    if not found or len(_ready_by_step(steps)) < _MIN_STEPS:
        return None
    rank = max(found, key=lambda key: (found[key][1], found[key][2]))
    score, last_share, lag = found[rank]
    wall = statistics.median(step.wall for step in steps[rank])
    if last_share < _OFTEN or lag < _LATE * wall:
        return None
    return Straggler(rank=rank, score=score, last_share=last_share, lag_ns=lag)
