"""One machine's evidence about its ranks, as a message to other machines, and the report made from it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankwise import vitals
from rankwise.diagnose.watch.registry import Entry
from rankwise.launch.failures.culprit import Culprit, RankState, find_culprit
from rankwise.launch.failures.observation import describe_places, is_stopped, rank_states, read_stacks
from rankwise.launch.local.sessions import process_state
from rankwise.vitals import Vital

__all__ = ["Evidence", "collect", "idle_s", "read_vitals", "report", "save"]

_STACK_CHARACTERS = 20_000  # limit per rank, for ranks with very many threads


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence about some ranks.

    Attributes:
        states: for `find_culprit`.
        stacks: by rank.
        places: by rank, "epoch 1, step 20, at file:line in function".
        idle_s: time since any of them made progress.
    """

    states: Sequence[RankState]
    stacks: Mapping[int, str]
    places: Mapping[int, str]
    idle_s: float

    def to_json(self) -> str:
        """Return the evidence as a message."""
        return json.dumps(
            {
                "states": [asdict(state) for state in self.states],
                "stacks": {str(rank): text[:_STACK_CHARACTERS] for rank, text in self.stacks.items()},
                "places": {str(rank): text for rank, text in self.places.items()},
                "idle_s": self.idle_s,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Parse such a message.

        Raises:
            ValueError: the text is no such message.
        """
        try:
            found = json.loads(text)
            return cls(
                states=[RankState(**state) for state in found["states"]],
                stacks={int(rank): str(stack) for rank, stack in found["stacks"].items()},
                places={int(rank): str(place) for rank, place in found["places"].items()},
                idle_s=float(found["idle_s"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a message of a watched rank: {error!r}") from error

    def with_others(self, other: Evidence) -> Evidence:
        """Return both combined."""
        return Evidence(
            states=sorted([*self.states, *other.states], key=lambda state: state.rank),
            stacks={**self.stacks, **other.stacks},
            places=dict(sorted({**self.places, **other.places}.items())),
            idle_s=min(self.idle_s, other.idle_s),
        )


def read_vitals(entries: Sequence[Entry]) -> list[Vital]:
    """Return the vitals of this machine's ranks whose processes still run."""
    found = []
    for entry in entries:
        if process_state(entry.pid) in {"", "Z", "X"}:  # ended; perhaps not reaped yet
            continue
        try:
            found += [vital for vital in vitals.read(entry.folder) if vital.rank == entry.rank]
        except OSError:  # its folder was removed
            continue
    return found


def idle_s(vital: Vital) -> float:
    """Return the time since a rank last began a collective or reported progress."""
    return time.monotonic() - (vital.moved_s or vital.start_s)


def collect(entries: Sequence[Entry]) -> Evidence:
    """Ask this machine's ranks for their stacks and last calls, and note those that have ended."""
    found = read_vitals(entries)
    stacks = read_stacks(found)
    states = rank_states(found, stacks)
    alive = {vital.rank for vital in found}
    gone = [entry for entry in entries if entry.rank not in alive]
    states += [RankState(rank=entry.rank, state="gone") for entry in gone]
    places = {
        vital.rank: ", at ".join(filter(None, (_said(vital), state.place)))
        for vital, state in zip(found, states, strict=False)
    }
    places |= {entry.rank: f"process {entry.pid} on {entry.name} has ended" for entry in gone}
    return Evidence(
        states=sorted(states, key=lambda state: state.rank),
        stacks={**stacks, **{entry.rank: "" for entry in gone}},
        places=dict(sorted(places.items())),
        idle_s=min(map(idle_s, found), default=0.0),
    )


def _said(vital: Vital) -> str:
    if is_stopped(vital):
        return f"process {vital.pid} is stopped"
    return vital.place if vital.num_beats else ""


def report(evidence: Evidence, headline: str, missing: Sequence[int] = ()) -> tuple[Culprit, str]:
    """Return the verdict and the report text: the verdict first, then every rank's stacks."""
    verdict = find_culprit(evidence.states)
    running = {rank: place for rank, place in evidence.places.items() if evidence.stacks.get(rank)}
    text = describe_places(f"{headline}\n{verdict.text}", running, evidence.stacks)
    silent = [rank for rank in evidence.places if rank not in running]
    text += "".join(f"\nrank {rank}: {evidence.places[rank] or 'does not answer'}" for rank in silent)
    if missing:
        text += f"\nranks without any message: {', '.join(map(str, missing))}"
    return verdict, text


def save(folder: Path, evidence: Evidence, verdict: Culprit, text: str) -> Path:
    """Write the text, and the evidence as JSON beside it; return the text's path.

    Raises:
        OSError: the folder is not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"rankwise-stall-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    content: dict[str, Any] = {"verdict": asdict(verdict), **json.loads(evidence.to_json())}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1))
    stem.with_suffix(".txt").write_text(text + "\n")
    return stem.with_suffix(".txt")
