"""From traces to a profile with the causes of lost time: their cost, and what to change, each with its numbers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from rankwise.diagnose.profile.parts import PARTS, find_phases, split_steps
from rankwise.diagnose.profile.profile import Finding, Profile
from rankwise.diagnose.profile.ranks import find_straggler, match_collectives
from rankwise.diagnose.profile.trace import Trace, find_traces, read_trace
from rankwise.errors import DataError

# Minimum shares of the step for a finding. Parts that every step needs (forward, backward) have none.
_LEAST = {"data": 0.05, "h2d": 0.05, "transfer": 0.10, "wait": 0.10, "optimizer": 0.15, "other": 0.15}
_SHORT_US = 10.0  # a kernel shorter than its launch
_IDLE = 0.15
_WORDS = {
    "data": "waiting for data",
    "h2d": "copying to the device",
    "optimizer": "the optimizer",
    "other": "other work",
}


def advise(profile: Profile) -> list[Finding]:
    """Return the causes of lost time, the most expensive first; causes without a measured cost are left out."""
    found = [
        finding
        for finding in (
            _straggler(profile),
            _jitter(profile),
            *(_part(profile, name) for name in ("data", "h2d", "optimizer", "other")),
            _transfer(profile),
            _launches(profile),
            _unused(profile),
        )
        if finding is not None
    ]
    return sorted(found, key=lambda finding: -(finding.cost_ms or 0.0))


def _finding(
    profile: Profile, cause: str, share: float | None, text: str, change: str, *, rank: int | None = None
) -> Finding:
    cost_ms = None if share is None else share * profile.step_ms
    return Finding(cause=cause, rank=rank, cost_ms=cost_ms, share=share, text=text, change=change)


def _straggler(profile: Profile) -> Finding | None:
    """Find a rank that the others wait for, and the part of the step in which it loses time."""
    late = profile.straggler
    if late is None:
        return None
    others = [rank for rank in profile.steps if rank != late.rank]
    share = statistics.fmean(profile.share(rank)["wait"] for rank in others)
    own = profile.mean_ms(late.rank)
    middle = {part: statistics.median(profile.mean_ms(rank)[part] for rank in others) for part in PARTS}
    own_parts = [part for part in PARTS if part not in {"wait", "transfer"}]
    where = max(own_parts, key=lambda part: own[part] - middle[part])
    text = (
        f"rank {late.rank} is the last to be ready in {late.last_share:.0%} of the steps, {late.lag_ns / 1e6:.1f} ms "
        f"after the others (score {late.score:.2f}), which wait for it {share:.0%} of their time. It loses this time "
        f"in {where}: {own[where]:.1f} ms against {middle[where]:.1f} ms"
    )
    change = {
        "data": f"check what rank {late.rank} reads and from where; num_workers= and prefetch hide the delay",
        "h2d": f"check the bus and the pinned memory of rank {late.rank}",
        "forward": f"compare the batch of rank {late.rank} (size, lengths) with the others', and its cores or GPU "
        "(clocks, other processes)",
        "backward": f"compare the cores or the GPU of rank {late.rank} with the others': clocks, other processes",
    }.get(where, f"check what the script does on rank {late.rank} only, such as logging or saving")
    return _finding(profile, "straggler", share, text, change, rank=late.rank)


def _jitter(profile: Profile) -> Finding | None:
    share = profile.share()["wait"]
    if profile.straggler is not None or share < _LEAST["wait"]:
        return None
    text = f"the ranks wait for each other {share:.0%} of their time, and it is not always the same rank that is late"
    change = "use batches of equal cost (sort by length, bucket), fewer other processes on the machine, or accumulation"
    return _finding(profile, "jitter", share, text, change)


def _part(profile: Profile, name: str) -> Finding | None:
    """Find a part that takes too large a share of the step, on all ranks or on one."""
    shares = {rank: profile.share(rank)[name] for rank in profile.steps}
    share = statistics.fmean(shares.values())
    if share < _LEAST[name]:
        return None
    worst = max(shares, key=lambda rank: shares[rank])
    rest = [value for rank, value in shares.items() if rank != worst]
    alone = bool(rest) and max(rest) < min(_LEAST[name], shares[worst] / 2)
    if alone and profile.straggler is not None and profile.straggler.rank == worst:
        return None  # reported there
    who = f"rank {worst} spends {shares[worst]:.0%}" if alone else f"the ranks spend {share:.0%}"
    text = f"{who} of the step in {_WORDS[name]} ({share * profile.step_ms:.1f} ms of {profile.step_ms:.1f} ms)"
    if name == "data" and profile.settings.get("loader"):
        text += f", most of it for {profile.settings['loader']}"
    return _finding(profile, name, share, text, _change(profile, name), rank=worst if alone else None)


def _change(profile: Profile, name: str) -> str:
    workers, loader = profile.settings.get("num_workers"), profile.settings.get("loader", "DataLoader")
    if name == "data":
        if loader != "DataLoader":
            return f"{loader} already reads ahead: check its stats and rankwise data bench, or make transforms cheaper"
        if workers == 0:
            return "the DataLoader reads in the training process (num_workers=0): give it workers that read ahead"
        if workers:
            return f"use more than num_workers={workers}, a larger prefetch_factor, or cheaper reading and transforms"
        return "read ahead (num_workers=, prefetch), or make reading and transforms cheaper"
    return {
        "h2d": (
            "use pinned memory (pin_memory=True) with non_blocking=True; copy the next batch while this one is computed"
        ),
        "optimizer": (
            "use an optimizer with fused=True (or foreach=True), or shard it over the ranks with strategy='zero1'"
        ),
        "other": "look for .item(), printing, logging and saving between the steps, and do them only every n-th step",
    }[name]


def _transfer(profile: Profile) -> Finding | None:
    share = profile.share()["transfer"]
    if share < _LEAST["transfer"]:
        return None
    steps = [step for mine in profile.steps.values() for step in mine]
    whole = sum(step.comm for step in steps)
    shown = sum(step.parts["transfer"] + step.parts["wait"] for step in steps)
    hidden = 1 - shown / whole if whole else 0.0
    per_step = len(profile.matching.groups) / max(1, len(profile.numbers))
    text = (
        f"exposed communication takes {share:.0%} of the step; {per_step:.0f} collective(s) a step run for "
        f"{whole / len(steps) / 1e6:.1f} ms, {hidden:.0%} of it behind compute"
    )
    change = (
        "accumulate (micro-batches under no_sync, or Order(micro_batch=)), compress (bf16 or fp16 hook), or find the "
        "bucket size: rankwise profile --sweep bucket_mb=1,5,25,100"
    )
    return _finding(profile, "communication", share, text, change)


def _launches(profile: Profile) -> Finding | None:
    """Find a GPU that waits for the host between kernels that are shorter than a launch."""
    if not profile.on_gpu or profile.kernel_us is None or profile.kernel_us >= _SHORT_US:
        return None
    steps = [step for mine in profile.steps.values() for step in mine]
    share = sum(step.idle for step in steps) / sum(step.wall for step in steps)
    if share < _IDLE:
        return None
    count = statistics.fmean(step.num_kernels for step in steps)
    text = (
        f"the GPU has nothing to do in {share:.0%} of the step, between {count:.0f} kernels a step of "
        f"{profile.kernel_us:.1f} us (median): the host cannot launch them fast enough"
    )
    change = "use torch.compile (mode='reduce-overhead'), larger micro-batches, a fused optimizer"
    return _finding(profile, "small kernels", share, text, change)


def _unused(profile: Profile) -> Finding | None:
    if not profile.settings.get("find_unused") or profile.settings.get("static_graph"):
        return None
    text = "DDP looks for unused parameters in every step (find_unused_parameters=True)"
    unused, try_it = profile.settings.get("unused_bytes"), "measure it: rankwise profile --sweep"
    if unused is None:
        change = f"leave it out, or use static_graph=True if the unused ones never change; {try_it} find_unused=1,0"
    elif unused == 0:
        text += " and found none in its last report: each had a gradient on every rank"
        change = f"leave it out; {try_it} find_unused=1,0"
    else:
        text += f" and last found {unused / 2**20:.3g} MiB of them on a rank"
        change = f"use static_graph=True if they are the same in every step; {try_it} static_graph=0,1"
    text += "; a trace does not show the whole cost"
    return _finding(profile, "find_unused", None, text, change)


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
