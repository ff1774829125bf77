"""What the supervisor sees of each rank while no rank makes progress, and which rank blocks the others."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise import vitals
from rankwise.launch.failures.culprit import RankState, find_culprit
from rankwise.launch.hardware import format_numbers
from rankwise.launch.local.sessions import process_state
from rankwise.vitals import Vital
from rankwise.vitals.stacks import place, tidy, waits

__all__ = [
    "Sighting",
    "choose",
    "describe_places",
    "describe_sightings",
    "is_frozen",
    "is_stopped",
    "look",
    "rank_states",
    "read_stacks",
    "shortened",
    "sighting_from",
    "sighting_of",
]

_MESSAGE_CHARACTERS = 150_000
_STATES = {"running", "stopped", "silent"}
_STALE_S = 10.0  # without a heartbeat: the rank is frozen; heartbeats come twice a second, later on a busy machine
_QUIET_S = 3.0  # the same for a rank that has not answered either
_STACKS_S = 4.0  # how long to wait for the ranks' stacks
_CALLS_S = 3.0  # the same for their last calls; a rank answers at its next heartbeat, late on a busy machine
_BUSY_S = 20.0
_WIDTH = 72


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """What the supervisor sees of one rank; sent between machines, so it holds no clock readings, only durations.

    Attributes:
        rank: global rank.
        state: as `RankState.state`.
        frozen: why its threads do not run, "" if they do.
        said: the epoch, step and phase that it reported, as text.
        epoch: the last one that it reported; None if none.
        step: the last one that it reported; None if none.
        phase: the last one that it reported; "" if none.
        quiet_s: seconds since it last reported progress.
        stacks: of its threads, "" if they cannot be read.
        groups: as `RankState.groups`.
    """

    rank: int
    state: str = "running"
    frozen: str = ""
    said: str = ""
    epoch: int | None = None
    step: int | None = None
    phase: str = ""
    quiet_s: float = 0.0
    stacks: str = ""
    groups: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def where(self) -> str:
        """Return what it reported and the line of user code that it executes."""
        return ", at ".join(filter(None, (self.said, place(self.stacks))))

    @property
    def waits(self) -> int:
        """How likely it waits in a collective, see `rankwise.vitals.stacks.waits`."""
        return waits(self.stacks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def sighting_from(found: Mapping[str, Any]) -> Sighting:
    """Build a sighting from what `to_dict` returned on another machine.

    Raises:
        KeyError: a field is missing.
        TypeError: a field has the wrong type.
        ValueError: a field has an invalid value.
    """
    numbers = {name: None if found[name] is None else int(found[name]) for name in ("epoch", "step")}
    texts = {name: str(found[name]) for name in ("state", "frozen", "said", "phase", "stacks")}
    if texts["state"] not in _STATES:
        raise ValueError(f"a rank is {' or '.join(sorted(_STATES))}, not {texts['state']!r}")
    groups = [dict(group) for group in found["groups"]]
    return Sighting(rank=int(found["rank"]), quiet_s=float(found["quiet_s"]), groups=groups, **numbers, **texts)  # type: ignore[arg-type]


def sighting_of(vital: Vital, stacks: str, state: RankState | None = None) -> Sighting:
    """Return a sighting from a rank's vitals, its stacks and, if known, its last calls."""
    frozen = ""
    if is_frozen(vital):
        frozen = "its process is stopped (SIGSTOP)" if is_stopped(vital) else "its heartbeat has stopped"
    return Sighting(
        rank=vital.rank,
        state=state.state if state is not None else "running",
        frozen=frozen,
        said=vital.place,
        epoch=vital.epoch,
        step=vital.step,
        phase=vital.phase,
        quiet_s=time.monotonic() - vital.progress_s,
        stacks=stacks,
        groups=state.groups if state is not None else (),
    )


def read_stacks(found: Sequence[Vital], until_s: float = math.inf) -> dict[int, str]:
    """Return the stacks of the ranks that can answer, "" for the others.

    Args:
        found: the ranks, of this machine.
        until_s: monotonic time after which ranks that have not answered are skipped.
    """
    patience_s = max(0.0, min(_STACKS_S, until_s - time.monotonic()))
    asked = [vital for vital in found if not is_stopped(vital)] if patience_s > 0 else []
    return {vital.rank: "" for vital in found} | vitals.request_stacks(asked, patience_s)


def rank_states(found: Sequence[Vital], stacks: Mapping[int, str], until_s: float = math.inf) -> list[RankState]:
    """Return what is known of each rank: whether it runs, where it is, what it last called.

    Args:
        found: the ranks, of this machine.
        stacks: of each.
        until_s: monotonic time after which ranks that have not answered are skipped.
    """
    asked = [vital for vital in found if not is_frozen(vital)]
    left_s = max(0.0, until_s - time.monotonic())
    calls = vitals.request_calls(asked, min(_CALLS_S, left_s), min(_BUSY_S, left_s))
    return [
        RankState(
            rank=vital.rank,
            state=_state(vital, answers=vital.rank in calls),
            place=place(stacks[vital.rank]),
            groups=calls.get(vital.rank, ()),
            waits=waits(stacks[vital.rank]) > 0,
        )
        for vital in found
    ]


def _state(vital: Vital, *, answers: bool) -> str:
    if is_stopped(vital):
        return "stopped"
    silent_s = time.monotonic() - vital.heartbeat_s
    return "silent" if silent_s > _STALE_S or (not answers and silent_s > _QUIET_S) else "running"


def describe_places(
    headline: str, places: Mapping[int, str], stacks: Mapping[int, str], missing: Sequence[int] = ()
) -> str:
    """Return the headline, then where each rank is (equal stacks once), then the ranks that have not begun."""
    lines = [headline]
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, where in places.items():
        groups.setdefault((where, re.sub(r"0x[0-9a-f]+", "", tidy(stacks[rank]))), []).append(rank)
    for (where, _), ranks in groups.items():
        title = f"---- rank {format_numbers(ranks)}: {where} "
        told = tidy(stacks[ranks[0]]) or "its stacks are not available: it is stopped, or does not answer"
        lines += [title + "-" * max(0, _WIDTH - len(title)), told]
    lines += [f"---- rank {format_numbers(missing)} has not started"] if missing else []
    return "\n".join([*lines, "-" * _WIDTH])


def is_frozen(vital: Vital) -> bool:
    """Whether the rank's threads do not run: it is stopped, or a call holds the interpreter lock."""
    return is_stopped(vital) or time.monotonic() - vital.heartbeat_s > _STALE_S


def is_stopped(vital: Vital) -> bool:
    """Whether the rank's process is stopped (SIGSTOP, or a debugger)."""
    return process_state(vital.pid) in {"T", "t"}


def look(folder: Path, alive: Collection[int], patience_s: float = 60.0) -> list[Sighting]:
    """Return a sighting of each rank of this machine, except of those that have not begun.

    Args:
        folder: vitals of the attempt.
        alive: ranks to look at.
        patience_s: how long to wait in total for ranks that do not answer.
    """
    until_s = time.monotonic() + patience_s
    found = [vital for vital in vitals.read(folder) if vital.rank in alive]
    stacks = read_stacks(found, until_s - patience_s / 2)
    states = rank_states(found, stacks, until_s)
    return [sighting_of(vital, stacks[vital.rank], state) for vital, state in zip(found, states, strict=True)]


def shortened(found: Sequence[Sighting]) -> list[Sighting]:
    """Return the sightings cut to the size of a message between machines: fewer ranks, shorter stacks."""
    most = _MESSAGE_CHARACTERS // max(1, len(found))
    return [
        replace(
            seen,
            stacks=seen.stacks[: most // 2],
            groups=seen.groups if len(json.dumps(seen.groups)) < most // 2 else (),
        )
        for seen in found
    ]


def describe_sightings(headline: str, found: Sequence[Sighting], missing: Sequence[int] = ()) -> str:
    """Return the headline, then where each rank is (equal stacks once), then the ranks that have not begun."""
    places, stacks = {seen.rank: seen.where for seen in found}, {seen.rank: seen.stacks for seen in found}
    return describe_places(headline, places, stacks, missing)


def choose(found: Sequence[Sighting]) -> tuple[Sighting, str]:
    """Return the rank that blocks the others, and the reason; the reason is "" for a single rank.

    Decide by the collectives that torch has recorded, else by stacks alone.
    """
    if any(group.get("calls") for seen in found for group in seen.groups):
        verdict = find_culprit([_rank_state(seen) for seen in found])
        if verdict.kind in {"missing", "mismatch", "crossed"}:
            return next(seen for seen in found if seen.rank == verdict.ranks[0]), verdict.text
    frozen = [seen for seen in found if seen.frozen]
    if frozen:
        return frozen[0], frozen[0].frozen
    if len(found) == 1:
        return found[0], ""
    return _choose_by_stacks(found)


def _rank_state(seen: Sighting) -> RankState:
    return RankState(
        rank=seen.rank, state=seen.state, place=place(seen.stacks), groups=seen.groups, waits=seen.waits > 0
    )


def _choose_by_stacks(found: Sequence[Sighting]) -> tuple[Sighting, str]:
    places = {seen.rank: place(seen.stacks) for seen in found}
    here = Counter(places.values())

    def suspect(seen: Sighting) -> tuple[tuple[int, int], int, float]:
        return _progress(seen), here[places[seen.rank]], -seen.quiet_s

    waiting = {seen.rank: seen.waits for seen in found}
    busy = [seen for seen in found if waiting[seen.rank] == min(waiting.values())]
    if len(busy) < len(found):
        return min(busy, key=suspect), "the others wait for it in a collective"
    behind, furthest = min(found, key=suspect), max(found, key=_progress)
    if _progress(behind) != _progress(furthest):
        return behind, f"it is behind the others (furthest: {furthest.said})"
    most, num_most = here.most_common(1)[0]
    if len(here) > 1 and num_most > len(found) / 2:
        odd = [seen for seen in found if places[seen.rank] != most]
        return min(odd, key=suspect), f"it is elsewhere than the others ({num_most} of {len(found)} are at {most})"
    return _quietest(
        found, "all ranks are at the same place" if len(here) == 1 else "the ranks are at different places"
    )


def _quietest(found: Sequence[Sighting], where: str) -> tuple[Sighting, str]:
    phases = [seen.phase for seen in found]
    lone = [seen for seen in found if phases.count(seen.phase) == 1]
    first = max(lone or found, key=lambda seen: seen.quiet_s)
    if lone:
        return first, "its phase differs from the others'"
    return first, f"{where}; it was the first to stop reporting"


def _progress(seen: Sighting) -> tuple[int, int]:
    none = -1
    return (none if seen.epoch is None else seen.epoch, none if seen.step is None else seen.step)
