"""Run a script with the recorder: once for a profile, or several times with different settings."""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.diagnose.profile.advice import profile_traces
from rankwise.diagnose.profile.noise import LEAST_RUNS, differ, spread
from rankwise.diagnose.profile.profile import Profile
from rankwise.diagnose.profile.recorder import VARIABLE, Task
from rankwise.diagnose.script_run import Script, run_observed
from rankwise.errors import ConfigError, LaunchError

# Settings that a sweep may change, and DDP's names of them.
SWEPT = {
    "bucket_mb": "bucket_cap_mb",
    "static_graph": "static_graph",
    "find_unused": "find_unused_parameters",
    "bucket_view": "gradient_as_bucket_view",
}


def run_recorded(script: Script, num_ranks: int, task: Task) -> list[dict[str, Any]]:
    """Run a script once on this machine; return the records of each rank.

    Its run directory is removed, unless the run failed: then it keeps the ranks' output.

    Raises:
        LaunchError: it failed, or took fewer optimizer steps than requested.
    """
    scratch = Path(tempfile.mkdtemp(prefix="rankwise-profile-"))
    outcome = run_observed(
        "rankwise.diagnose.profile",
        script,
        num_ranks=num_ranks,
        place=scratch,
        env={VARIABLE: task.to_json()},
    )
    if outcome.exitcode:
        raise LaunchError(f"{script.path} failed on {num_ranks} ranks:\n{outcome.text.strip()}")
    shutil.rmtree(scratch)
    found = []
    for rank in range(num_ranks):
        path = Path(task.folder) / f"rank-{rank}.json"
        facts: dict[str, Any] = {"num_steps": 0, "walls_ns": [], "num_traced": 0}
        if path.is_file():
            facts = json.loads(path.read_text())
        if len(facts["walls_ns"]) < task.timed or (task.traced and not facts["num_traced"]):
            raise LaunchError(
                f"{script.path} took {facts['num_steps']} optimizer steps on rank {rank} of {num_ranks}, but "
                f"{task.num_steps} are needed: let it run longer, or reduce --steps or --skip; only steps of torch's "
                "optimizers in the started process are recorded"
            )
        found.append(facts)
    return found


def profile_script(
    script: Script, *, num_ranks: int = 2, steps: int = 20, skip: int = 5, to_end: bool = False, folder: Path
) -> Profile:
    """Run a script, record some steps of each rank, and return where their time goes.

    Call it in the main thread of a process without other threads.

    Args:
        script: any script that steps a torch optimizer.
        num_ranks: number of ranks to start.
        steps: number of steps to record.
        skip: number of steps to skip at the beginning, >= 1.
        to_end: let the script continue after the recording, instead of ending it.
        folder: run directory for `traces/` and `profile.json`; existing ones are replaced.

    Raises:
        ConfigError: a number is out of range.
        LaunchError: the script failed or is too short.
    """
    if min(num_ranks, steps, skip) < 1:
        raise ConfigError(f"ranks, steps and skip must be at least 1, got {num_ranks}, {steps} and {skip}")
    traces = folder / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    # in a folder of its own: another profile may record into the same run directory, or this one may fail
    with tempfile.TemporaryDirectory(prefix=".recording-", dir=traces) as fresh:
        task = Task(folder=str(Path(fresh).resolve()), skip=skip, traced=steps, to_end=to_end)
        run_recorded(script, num_ranks, task)
        profile = profile_traces(Path(fresh))
        for old in [*traces.glob("rank-*.trace.json.gz"), *traces.glob("rank-*.json")]:
            old.unlink(missing_ok=True)
        for new in Path(fresh).iterdir():
            new.replace(traces / new.name)
    profile.command = (script.path, *script.args)
    return profile


def sweep_setting(
    script: Script,
    setting: str,
    values: Sequence[float],
    *,
    num_ranks: int,
    steps: int,
    skip: int,
    repeats: int,
    folder: Path,
) -> dict[str, Any]:
    """Run a script with each value of a DDP setting, several times in random order, and compare the step times.

    The profiler is off. A value that differs from the first one by more than the noise of whole runs gets a verdict.

    Raises:
        ConfigError: the setting or a value is unknown, or there are fewer than two values.
        LaunchError: a run failed.
    """
    check_sweep(setting, values, repeats)
    order = [value for value in values for _ in range(repeats)]
    random.Random(0).shuffle(order)  # noqa: S311  (an order, no secret)
    times_ms: dict[float, list[float]] = {value: [] for value in values}
    for number, value in enumerate(order):
        place = folder / f"sweep-{number}"
        place.mkdir(parents=True)
        ddp = {SWEPT[setting]: value if setting == "bucket_mb" else bool(value)}
        task = Task(folder=str(place.resolve()), skip=skip, timed=steps, traced=0, ddp=ddp)
        facts = run_recorded(script, num_ranks, task)
        if facts[0]["settings"].get(setting) is None:
            raise LaunchError(
                f"{script.path} wraps no model in DistributedDataParallel, so there is nothing to sweep for {setting}"
            )
        times_ms[value].append(max(statistics.median(rank["walls_ns"]) for rank in facts) / 1e6)
        shutil.rmtree(place)
    return {"setting": setting, "repeats": repeats, "values": evaluate_sweep(times_ms)}


def evaluate_sweep(times_ms: Mapping[float, Sequence[float]]) -> list[dict[str, Any]]:
    """Return for each value its median step time, quartiles, and the comparison with the first value, if decided."""
    first, *_ = times_ms
    told = []
    for value, times in times_ms.items():
        found = spread(times)
        verdict = None
        if value != first and differ(times_ms[first], times):
            change = found.median / statistics.median(times_ms[first]) - 1
            verdict = f"{abs(change):.0%} {'slower' if change > 0 else 'faster'} than {first:g}"
        told.append(
            {"value": value, "step_ms": found.median, "low_ms": found.low, "high_ms": found.high, "verdict": verdict}
        )
    return told


def check_sweep(setting: str, values: Sequence[float], repeats: int) -> None:
    """Check the arguments of `sweep_setting` before anything runs.

    Raises:
        ConfigError: see there.
    """
    if setting not in SWEPT:
        raise ConfigError(f"a sweep must change one of {', '.join(SWEPT)}, got {setting!r}")
    if len(set(values)) < 2 or len(set(values)) < len(values):
        raise ConfigError(f"a sweep needs two different values or more, got {list(values)}")
    if setting == "bucket_mb" and not all(0 < value < math.inf for value in values):
        raise ConfigError(f"bucket_mb must be megabytes above 0, got {list(values)}")
    if setting != "bucket_mb" and not set(values) <= {0, 1}:
        raise ConfigError(f"{setting} must be 0 or 1, got {list(values)}")
    if repeats < LEAST_RUNS:
        raise ConfigError(
            f"repeats must be at least {LEAST_RUNS}, as fewer runs do not show their noise, got {repeats}"
        )
