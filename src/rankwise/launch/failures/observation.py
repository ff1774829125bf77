"""What the supervisor sees of each rank while no rank makes progress."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise import vitals
from rankwise.launch.hardware import format_numbers
from rankwise.launch.local.sessions import process_state
from rankwise.vitals import Vital
from rankwise.vitals.stacks import place, shorten_stacks, waits

_MESSAGE_CHARACTERS = 150_000
_STATES = {"running", "stopped", "silent", "gone"}
_STALE_S = 10.0  # without a heartbeat: the rank is frozen; heartbeats come twice a second, later on a busy machine
_QUIET_S = 3.0  # the same for a rank that has not answered either
_STACKS_S = 4.0  # how long to wait for the ranks' stacks
_CALLS_S = 3.0  # the same for their last calls; a rank answers at its next heartbeat, late on a busy machine
_BUSY_S = 20.0
_WIDTH = 72


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What the supervisor sees of one rank; sent between machines, so it holds no clock readings, only durations.

    Attributes:
        rank: global rank.
        state: "running", "stopped" (SIGSTOP), "silent" (its threads do not run: a call holds the interpreter lock, or
            the rank cannot be reached) or "gone" (its process has ended).
        frozen: why its threads do not run, "" if they do.
        said: the epoch, step and phase that it reported, as text.
        epoch: the last one that it reported; None if none.
        step: the last one that it reported; None if none.
        phase: the last one that it reported; "" if none.
        quiet_s: seconds since it last reported progress.
        stacks: of its threads, "" if they cannot be read.
        groups: what `rankwise.vitals.collectives.last_calls` returned on that rank; empty if unknown.
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
    def place(self) -> str:
        """Return "file:line in function" of the user's code that it executes, "" if unknown."""
        return place(self.stacks)

    @property
    def where(self) -> str:
        """Return what it reported and the line of user code that it executes."""
        return ", at ".join(filter(None, (self.said, self.place)))

    @property
    def waits(self) -> int:
        """How likely it waits in a collective, see `rankwise.vitals.stacks.waits`."""
        return waits(self.stacks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def observation_from(found: Mapping[str, Any]) -> Observation:
    """Build an observation from what `to_dict` returned on another machine.

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
    return Observation(rank=int(found["rank"]), quiet_s=float(found["quiet_s"]), groups=groups, **numbers, **texts)  # type: ignore[arg-type]


def observation_of(vital: Vital, stacks: str, calls: Sequence[Mapping[str, Any]] | None) -> Observation:
    """Return an observation from a rank's vitals, its stacks, and its last calls (None: it did not answer)."""
    silent_s, frozen = time.monotonic() - vital.heartbeat_s, ""
    state = "silent" if silent_s > (_QUIET_S if calls is None else _STALE_S) else "running"
    if _is_stopped(vital):
        state, frozen = "stopped", "its process is stopped (SIGSTOP)"
    elif silent_s > _STALE_S:
        frozen = "its heartbeat has stopped"
    return Observation(
        rank=vital.rank,
        state=state,
        frozen=frozen,
        said=vital.place,
        epoch=vital.epoch,
        step=vital.step,
        phase=vital.phase,
        quiet_s=time.monotonic() - vital.progress_s,
        stacks=stacks,
        groups=calls or (),
    )


def read_running(folder: Path, alive: Collection[int]) -> list[Vital]:
    """Return the vitals of the ranks that are alive, except of those that have not begun."""
    return [vital for vital in vitals.read(folder) if vital.rank in alive]


def read_stacks(found: Sequence[Vital], patience_s: float = _STACKS_S) -> dict[int, str]:
    """Return the stacks of the ranks that can answer, "" for the others.

    It waits at most `patience_s` in total for ranks of this machine that do not answer.
    """
    asked = [vital for vital in found if not _is_stopped(vital)]
    return {vital.rank: "" for vital in found} | vitals.request_stacks(asked, min(_STACKS_S, patience_s))


def is_frozen(vital: Vital) -> bool:
    """Whether the rank's threads do not run: it is stopped, or a call holds the interpreter lock."""
    return _is_stopped(vital) or time.monotonic() - vital.heartbeat_s > _STALE_S


def _is_stopped(vital: Vital) -> bool:
    """Whether the rank's process is stopped (SIGSTOP, or a debugger)."""
    return process_state(vital.pid) in {"T", "t"}


def observe(found: Sequence[Vital], patience_s: float = 60.0) -> list[Observation]:
    """Return an observation of each rank: whether it runs, where it is, what it last called.

    It waits at most `patience_s` in total for ranks of this machine that do not answer.
    """
    until_s = time.monotonic() + patience_s
    stacks = read_stacks(found, patience_s / 2)
    left_s = max(0.0, until_s - time.monotonic())
    asked = [vital for vital in found if not is_frozen(vital)]
    calls = vitals.request_calls(asked, min(_CALLS_S, left_s), min(_BUSY_S, left_s))
    return [observation_of(vital, stacks[vital.rank], calls.get(vital.rank)) for vital in found]


def shortened(found: Sequence[Observation]) -> list[Observation]:
    """Return the observations cut to the size of a message between machines: fewer ranks, shorter stacks."""
    most = _MESSAGE_CHARACTERS // max(1, len(found))
    return [
        replace(
            seen,
            stacks=seen.stacks[: most // 2],
            groups=seen.groups if len(json.dumps(seen.groups)) < most // 2 else (),
        )
        for seen in found
    ]


def describe_observations(headline: str, found: Sequence[Observation], missing: Sequence[int] = ()) -> str:
    """Return the headline, then where each rank is (equal stacks once), then the ranks that have not begun."""
    lines = [headline]
    alike: dict[tuple[str, str], list[Observation]] = {}
    for seen in found:
        alike.setdefault((seen.where, re.sub(r"0x[0-9a-f]+", "", shorten_stacks(seen.stacks))), []).append(seen)
    for (where, _), those in alike.items():
        title = f"---- rank {format_numbers([seen.rank for seen in those])}: {where} "
        told = shorten_stacks(those[0].stacks) or "its stacks are not available: it is stopped, or does not answer"
        lines += [title + "-" * max(0, _WIDTH - len(title)), told]
    lines += [f"---- rank {format_numbers(missing)} has not started"] if missing else []
    return "\n".join([*lines, "-" * _WIDTH])
