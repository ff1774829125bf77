"""Build a profile from the traces of all ranks."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from rankwise.diagnose.profile.advice import advise
from rankwise.diagnose.profile.parts import find_phases, split_steps
from rankwise.diagnose.profile.profile import Profile
from rankwise.diagnose.profile.ranks import find_straggler, match_collectives
from rankwise.diagnose.profile.trace import Trace, find_traces, read_trace
from rankwise.errors import DataError


def profile_traces(folder: Path) -> Profile:
    """Read the traces of all ranks in a folder, or in the `traces/` of a run directory, and compare the ranks.

    Any trace of torch.profiler with a schedule that marks the steps works; `rankwise profile` also records settings.

    Raises:
        DataError: there are no traces, one cannot be read, or two have the same rank.
    """
    traces: list[Trace] = []
    settings: dict[str, Any] = {}
    first_step = 0
    for path in find_traces(folder):
        trace = read_trace(path, rank=len(traces))
        same = [other.path.name for other in traces if other.rank == trace.rank]
        if same:
            raise DataError(
                f"{folder}: {same[0]} and {path.name} both belong to rank {trace.rank}; keep only one of them"
            )
        traces.append(trace)
        beside = path.with_name(path.name.partition(".")[0] + ".json")
        if beside.is_file():
            first_step = _take_notes(beside, trace, settings)
    matching = match_collectives(traces)
    steps = {trace.rank: split_steps(trace, find_phases(trace)) for trace in traces}
    if not set.intersection(*({step.number for step in mine} for mine in steps.values())):
        raise DataError(f"{folder}: the ranks have no step in common; record the same steps on all of them")
    kernels = [kernel.end - kernel.start for trace in traces for kernel in trace.kernels]
    profile = Profile(
        steps=steps,
        hosts={trace.rank: trace.host for trace in traces},
        on_gpu=any(trace.on_gpu for trace in traces),
        matching=matching,
        straggler=find_straggler(steps),
        settings=settings,
        first_step=first_step,
        missing=sorted(set(range(max(trace.world_size for trace in traces))) - steps.keys()),
        kernel_us=statistics.median(kernels) / 1e3 if kernels else None,
    )
    profile.findings = advise(profile)
    return profile


def _take_notes(file: Path, trace: Trace, settings: dict[str, Any]) -> int:
    """Load the recorder's notes beside a trace; return the number of the script's step at its start."""
    try:
        facts = json.loads(file.read_text())
        unused = settings.get("unused_bytes") or 0
        settings |= facts["settings"]
        if settings.get("unused_bytes") is not None:  # ranks may have different unused parameters
            settings["unused_bytes"] = max(unused, settings["unused_bytes"])
        # a script that ended early leaves an incomplete step
        trace.steps = trace.steps[: int(facts["num_traced"])]
        first_step = int(facts["first_traced"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{file} is not the file that `rankwise profile` writes beside a trace: {error!r}; move it away"
        ) from error
    if not trace.steps:
        raise DataError(
            f"{trace.path}: the script ended before a step was recorded; record again with a smaller --skip"
        )
    return first_step
