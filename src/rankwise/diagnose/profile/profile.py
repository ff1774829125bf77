"""The data of a profile, from the traces of all ranks; docs/run_directory.md describes `profile.json`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.diagnose.profile.parts import PARTS, StepParts, is_gradient
from rankwise.diagnose.profile.ranks import Lateness, Matching, latenesses

SETTINGS = ("bucket_mb", "static_graph", "find_unused", "bucket_view", "num_workers", "prefetch", "loader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause of lost time.

    Attributes:
        cause: short name, such as "straggler" or "data".
        rank: the rank, None for all.
        cost_ms: milliseconds per step, None if unknown.
        share: share of the step's wall time, None if unknown.
        text: the observation, with its numbers.
        change: what to do.
    """

    cause: str
    rank: int | None
    cost_ms: float | None
    share: float | None
    text: str
    change: str


@dataclass(slots=True, kw_only=True)
class Profile:
    """Where the time of the steps went, by rank.

    Attributes:
        steps: the parts of each step of each rank.
        hosts: host name of each rank.
        on_gpu: whether there were kernels.
        matching: the matched collectives of the ranks.
        straggler: the rank that the others wait for, if there is one.
        settings: known settings of DDP and the loader.
        findings: causes of lost time, the most expensive first.
        command: words of the command line; None for existing traces.
        sweep: results of a sweep, in the format of `profile.json`; None without one.
        first_step: the script's number of the profiler's step 0.
        missing: ranks of the job without traces.
        kernel_us: median duration of a compute kernel; None without a GPU.
    """

    steps: dict[int, list[StepParts]]
    hosts: dict[int, str]
    on_gpu: bool
    matching: Matching
    straggler: Lateness | None
    settings: Mapping[str, Any]
    findings: list[Finding] = field(default_factory=list)
    command: Sequence[str] | None = None
    sweep: dict[str, Any] | None = None
    first_step: int = 0
    missing: Sequence[int] = ()
    kernel_us: float | None = None

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the steps that all ranks have."""
        return sorted(set.intersection(*({step.number for step in mine} for mine in self.steps.values())))

    @property
    def step_ms(self) -> float:
        """Return the median over the steps of the mean over the ranks."""
        walls = {rank: {step.number: step.wall for step in mine} for rank, mine in self.steps.items()}
        return statistics.median(statistics.fmean(w[n] for w in walls.values()) for n in self.numbers) / 1e6

    def mean_ms(self, rank: int) -> dict[str, float]:
        """Return the mean milliseconds of each part on a rank."""
        return {part: statistics.fmean(step.parts[part] for step in self.steps[rank]) / 1e6 for part in PARTS}

    def share(self, rank: int | None = None) -> dict[str, float]:
        """Return each part's share of the wall time of a rank, or of all ranks; the sum is 1."""
        chosen = self.steps.values() if rank is None else [self.steps[rank]]
        whole = sum(step.wall for mine in chosen for step in mine)
        return {part: sum(step.parts[part] for mine in chosen for step in mine) / whole for part in PARTS}

    def to_json(self) -> dict[str, Any]:
        """Return the content of `profile.json`."""
        per_step = [group for group in self.matching.groups if 0 in group or len(group) > 1]
        sized = [found.nbytes for group in per_step for found in [next(iter(group.values()))] if is_gradient(found)]
        num_steps = max(1, len(self.numbers))
        nbytes = self.settings.get("gradient_bytes")
        if nbytes is None and sized and None not in sized:
            nbytes = round(sum(size or 0 for size in sized) / num_steps)
        return {
            "version": 1,
            "kind": "profile",
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": None if self.command is None else list(self.command),
            "world_size": len(self.steps) + len(self.missing),
            "missing_ranks": list(self.missing),
            "device": "cuda" if self.on_gpu else "cpu",
            "parts": list(PARTS),
            "steps": [self.first_step + number for number in self.numbers],
            "step_ms": self.step_ms,
            "share": self.share(),
            "ranks": self._ranks(),
            "straggler": self._straggler(),
            "collectives": {
                "per_step": len(per_step) / num_steps,
                "bytes": nbytes,
                "matched": len(per_step),
                "unmatched": self.matching.unmatched,
            },
            "settings": {name: self.settings.get(name) for name in SETTINGS},
            "findings": [asdict(finding) for finding in self.findings],
            "sweep": self.sweep,
        }

    def _ranks(self) -> list[dict[str, Any]]:
        late = latenesses(self.steps)
        told = []
        for rank, mine in sorted(self.steps.items()):
            ready = [step.ready for step in mine if step.ready is not None]
            told.append(
                {
                    "rank": rank,
                    "host": self.hosts[rank],
                    "step_ms": statistics.fmean(step.wall for step in mine) / 1e6,
                    "mean_ms": self.mean_ms(rank),
                    "share": self.share(rank),
                    "ready_ms": statistics.median(ready) / 1e6 if ready else None,
                    "score": late[rank].score if late else None,
                    "last_share": late[rank].last_share if late else None,
                    "clock_offset_ms": self.matching.offsets_ns.get(rank, 0) / 1e6,
                    "steps_ms": [[step.parts[part] / 1e6 for part in PARTS] for step in mine],
                }
            )
        return told

    def _straggler(self) -> dict[str, Any] | None:
        if self.straggler is None:
            return None
        found = asdict(self.straggler)
        found["lag_ms"] = found.pop("lag_ns") / 1e6
        return found

    def save(self, path: Path) -> None:
        """Write the profile as JSON."""
        write_whole(path, json.dumps(self.to_json(), indent=1).encode())
