"""Compare the ranks: match their collectives, find the straggler, and estimate clock offsets."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.diagnose.profile.parts import StepParts
from rankwise.diagnose.profile.trace import Collective, Trace

_MIN_STEPS = 4  # with fewer steps, a rank may be last each time by chance
_OFTEN = 0.75
_LATE = 0.10  # share of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The matched collectives of the ranks.

    Attributes:
        groups: for each collective: {rank: the collective as recorded on that rank}.
        unmatched: number of collectives without a match.
        offsets_ns: nanoseconds to subtract from each rank's clock to get rank 0's, from the ends of collectives.
    """

    groups: list[dict[int, Collective]]
    unmatched: int
    offsets_ns: dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How late a rank is: the straggler is the rank that the others wait for.

    Attributes:
        rank: the rank.
        score: the median rank's time to the first ready bucket / this rank's time, median over the steps; for an even
            number of ranks, the faster of the two middle ones is the median, so that one of two ranks can lag.
        last_share: share of the steps in which it was ready last.
        lag_ns: delay of its first ready bucket compared to the median rank, median over the steps.
    """

    rank: int
    score: float
    last_share: float
    lag_ns: int


def match_collectives(traces: Sequence[Trace]) -> Matching:
    """Match the collectives of the ranks and store in each how long its rank waited.

    The n-th collective of an operation and group on one rank matches the n-th on the others. If the ranks recorded
    different numbers, count per step instead, and ignore steps with different numbers. The last rank waits for nobody,
    so the shortest duration over the ranks is the transfer time; this needs no common clock.
    """
    lists: dict[tuple[str, str], dict[int, list[tuple[int, Collective]]]] = defaultdict(dict)
    for trace in traces:
        for found in trace.collectives:
            number = next((n for n, start, end in trace.steps if start <= found.start < end), -1)
            lists[found.group, found.name].setdefault(trace.rank, []).append((number, found))
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
    """Return each clock's offset from the lowest rank's, assuming that a collective ends on all ranks at once."""
    bases = {trace.rank: trace.base_ns for trace in traces}
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


def latenesses(steps: dict[int, list[StepParts]]) -> dict[int, Lateness]:
    """Return how late each rank is; {} if no step is comparable."""
    rows = _ready_by_step(steps)
    middles = [statistics.median_low(row.values()) for row in rows]
    return {
        rank: Lateness(
            rank=rank,
            score=statistics.median(middle / max(1, row[rank]) for middle, row in zip(middles, rows, strict=True)),
            last_share=sum(row[rank] == max(row.values()) for row in rows) / len(rows),
            lag_ns=round(statistics.median(row[rank] - middle for middle, row in zip(middles, rows, strict=True))),
        )
        for rank in (steps if rows else ())
    }


def find_straggler(steps: dict[int, list[StepParts]]) -> Lateness | None:
    """Return the rank that the others wait for, None if no rank is late by a relevant time in most steps."""
    if len(_ready_by_step(steps)) < _MIN_STEPS:
        return None
    late = max(latenesses(steps).values(), key=lambda one: (one.last_share, one.lag_ns))
    wall = statistics.median(step.wall for step in steps[late.rank])
    return late if late.last_share >= _OFTEN and late.lag_ns >= _LATE * wall else None
