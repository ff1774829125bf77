"""One machine's evidence about its ranks, as a message to other machines, and the report made from it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rankwise import vitals
from rankwise.launch.failures.culprit import Culprit, find_culprit
from rankwise.launch.failures.observation import Observation, describe_observations, observation_from, observe
from rankwise.launch.local.sessions import process_state
from rankwise.vitals import Vital

JOB = "job"  # a file beside a watched rank's vitals: the name of its job
_PREFIX = "rankwise/watch"
_STACK_CHARACTERS = 20_000  # limit per rank, for ranks with very many threads


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One watched rank.

    Attributes:
        rank: global rank.
        pid: its process id, in the process namespace of `host`.
        host: key of its machine (or container); ranks with equal keys see each other's processes and memory files.
        name: host name, for messages.
        folder: folder of its vitals.
    """

    rank: int
    pid: int
    host: str
    name: str
    folder: str


class Registry:
    """The job's store, on a separate connection, because the main thread may block in the other one.

    Args:
        store: a store of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self._store = store.clone()
        self._appends = bool(self._store.has_extended_api())

    def enter(self, entry: Entry) -> str:
        """Register this rank; return the name of its job, which no other job on any machine has."""
        line = json.dumps(asdict(entry))
        if self._appends:
            self._store.append(f"{_PREFIX}/ranks", line + "\n")
        else:
            self._store.set(f"{_PREFIX}/rank/{entry.rank}", line)
        name = self._store.compare_set(f"{_PREFIX}/job", "", os.urandom(8).hex())  # the first rank's counts
        return str(name, "ascii")

    def entries(self, world_size: int) -> list[Entry]:
        """Return the registered ranks; the last entry of a rank counts.

        Raises:
            RuntimeError: the store does not answer (torch's own error).
        """
        if self._appends:
            text = self.read("ranks") or ""
        else:
            text = "\n".join(filter(None, (self.read(f"rank/{rank}") for rank in range(world_size))))
        found = {entry.rank: entry for entry in (Entry(**json.loads(line)) for line in text.splitlines())}
        return [found[rank] for rank in sorted(found)]

    def read(self, key: str) -> str | None:
        """Return a value, None if missing, without waiting for it."""
        full = f"{_PREFIX}/{key}"
        return self._store.get(full).decode() if self._store.check([full]) else None

    def write(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(f"{_PREFIX}/{key}", value)


def host_key() -> str:
    """Return a key that is equal for processes that see each other: kernel, process and mount namespaces, user."""
    parts = [socket.gethostname(), str(os.geteuid())]
    if sys.platform == "linux":
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts += [os.fspath(Path(f"/proc/self/ns/{name}").readlink()) for name in ("pid", "mnt")]
    return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence about some ranks.

    Attributes:
        ranks: what is seen of each, by rank.
        idle_s: time since any of them made progress.
    """

    ranks: Sequence[Observation]
    idle_s: float

    def to_json(self) -> str:
        """Return the evidence as a message."""
        states = [{**seen.to_dict(), "place": seen.place, "waits": seen.waits > 0} for seen in self.ranks]
        stacks = {str(state["rank"]): state.pop("stacks")[:_STACK_CHARACTERS] for state in states}
        places = {str(seen.rank): seen.where for seen in self.ranks}
        return json.dumps({"states": states, "stacks": stacks, "places": places, "idle_s": self.idle_s})

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Parse such a message.

        Raises:
            ValueError: the text is no such message.
        """
        try:
            found = json.loads(text)
            stacks = found["stacks"]
            ranks = [observation_from({**state, "stacks": stacks[str(state["rank"])]}) for state in found["states"]]
            return cls(ranks=ranks, idle_s=float(found["idle_s"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a message of a watched rank: {error!r}") from error

    def with_others(self, other: Evidence) -> Evidence:
        """Return both combined."""
        ranks = sorted([*self.ranks, *other.ranks], key=lambda seen: seen.rank)
        return Evidence(ranks=ranks, idle_s=min(self.idle_s, other.idle_s))


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
    ranks = [replace(seen, said=_describe(vital, seen)) for vital, seen in zip(found, observe(found), strict=True)]
    alive = {vital.rank for vital in found}
    ranks += [
        Observation(rank=entry.rank, state="gone", said=f"process {entry.pid} on {entry.name} has ended")
        for entry in entries
        if entry.rank not in alive
    ]
    idle = min(map(idle_s, found), default=0.0)
    return Evidence(ranks=sorted(ranks, key=lambda seen: seen.rank), idle_s=idle)


def _describe(vital: Vital, seen: Observation) -> str:
    if seen.state == "stopped":
        return f"process {vital.pid} is stopped"
    return vital.place if vital.num_beats else ""


def report(evidence: Evidence, headline: str, missing: Sequence[int] = ()) -> tuple[Culprit, str]:
    """Return the verdict and the report text: the verdict first, then every rank's stacks."""
    verdict = find_culprit(evidence.ranks)
    text = describe_observations(f"{headline}\n{verdict.text}", [seen for seen in evidence.ranks if seen.stacks])
    silent = [seen for seen in evidence.ranks if not seen.stacks]
    text += "".join(f"\nrank {seen.rank}: {seen.where or 'does not answer'}" for seen in silent)
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
    stem.with_suffix(".txt").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    return stem.with_suffix(".txt")
