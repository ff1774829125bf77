"""States and stacks of this machine's ranks while no rank makes progress, and the text about them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence

from rankwise import vitals
from rankwise.launch.culprit import RankState
from rankwise.launch.hardware import format_numbers
from rankwise.launch.local.sessions import process_state
from rankwise.vitals import Vital
from rankwise.vitals.stacks import place, tidy, waits

__all__ = ["describe_places", "is_frozen", "is_stopped", "rank_states", "read_stacks"]

_STALE_S = 10.0  # without a heartbeat: the rank is frozen; heartbeats come twice a second, later on a busy machine
_QUIET_S = 3.0  # the same for a rank that has not answered either
_STACKS_S = 4.0  # how long to wait for the ranks' stacks
_CALLS_S = 3.0  # the same for their last calls; a rank answers at its next heartbeat, late on a busy machine
_BUSY_S = 20.0
_WIDTH = 72


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
        told = tidy(stacks[ranks[0]]) or "its stacks cannot be had: it is stopped, or does not answer"
        lines += [title + "-" * max(0, _WIDTH - len(title)), told]
    lines += [f"---- rank {format_numbers(missing)} has not begun"] if missing else []
    return "\n".join([*lines, "-" * _WIDTH])


def is_frozen(vital: Vital) -> bool:
    """Whether the rank's threads do not run: it is stopped, or a call holds the interpreter lock."""
    return is_stopped(vital) or time.monotonic() - vital.heartbeat_s > _STALE_S


def is_stopped(vital: Vital) -> bool:
    """Whether the rank's process is stopped (SIGSTOP, or a debugger)."""
    return process_state(vital.pid) in {"T", "t"}
