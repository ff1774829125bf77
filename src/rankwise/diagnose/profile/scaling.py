"""Measure the scaling of a script: throughput by number of ranks, its spread, and the parts of the loss."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rankwise._files import write_whole
from rankwise.diagnose.profile.advice import profile_traces
from rankwise.diagnose.profile.noise import LEAST_RUNS, differ, spread
from rankwise.diagnose.profile.parts import PARTS
from rankwise.diagnose.profile.recorder import Task
from rankwise.diagnose.profile.runs import run_recorded
from rankwise.diagnose.script_run import Script
from rankwise.errors import ConfigError, LaunchError

Mode = Literal["strong", "weak", "other"]
_NUM_TRACED = 6
_SAME = 0.05  # batch sizes that differ by less count as equal when the mode is detected


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One run.

    Attributes:
        ranks: number of ranks.
        repeat: number of the repetition, from 0.
        step_ms: mean time of its steps, on the slowest rank.
        global_batch: mean number of samples per step over all ranks; None if unknown.
        share: share of each part in the steps that were traced after the timed ones.
    """

    ranks: int
    repeat: int
    step_ms: float
    global_batch: float | None
    share: dict[str, float]

    @property
    def throughput(self) -> float:
        """Return samples per second, or steps per second if the batch is unknown."""
        return (self.global_batch or 1.0) * 1000 / self.step_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The result of all runs with one number of ranks.

    Attributes:
        ranks: number of ranks.
        throughput: median of the runs.
        low: lower quartile.
        high: upper quartile.
        efficiency: throughput per rank / throughput per rank at the first size; None if the batches are unknown.
        efficiency_low: lower quartile over all pairs of runs.
        efficiency_high: upper quartile.
        verdict: the significant result; None if the noise exceeds the effect.
        text: the verdict, or why there is none.
        lost: time of each part beyond its time in the ideal step, as a share of the step; the sum is 1 - efficiency.
    """

    ranks: int
    throughput: float
    low: float
    high: float
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    verdict: str | None = None
    text: str = ""
    lost: dict[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The result of a scaling measurement.

    Attributes:
        runs: the runs in order of execution.
        sizes: results by number of ranks; the first is the reference.
        mode: strong, weak or other scaling; None if the batches are unknown.
        steps: number of timed steps per run.
        command: the script and its arguments.
    """

    runs: Sequence[TimedRun]
    sizes: Sequence[Size]
    mode: Mode | None
    steps: int
    command: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `scaling.json`."""
        return {
            "version": 1,
            "kind": "scaling",
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": list(self.command),
            "unit": "steps/s" if self.runs[0].global_batch is None else "samples/s",
            "mode": self.mode,
            "steps": self.steps,
            "repeats": max(run.repeat for run in self.runs) + 1,
            "order": [run.ranks for run in self.runs],
            "runs": [
                {
                    "ranks": run.ranks,
                    "repeat": run.repeat,
                    "throughput": run.throughput,
                    "step_ms": run.step_ms,
                    "global_batch": run.global_batch,
                }
                for run in self.runs
            ],
            "sizes": [asdict(size) for size in self.sizes],
        }

    def falls_below(self, least: float | None) -> bool:
        """Whether a size has a significantly lower efficiency: it has a verdict, and its upper quartile is below."""
        if least is None:
            return False
        return any(size.verdict is not None and (size.efficiency_high or 0.0) < least for size in self.sizes)

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.to_json(), indent=1).encode())


def measure_scaling(
    script: Script,
    *,
    ranks: Sequence[int] = (1, 2, 4),
    repeats: int = 3,
    steps: int = 20,
    skip: int = 5,
    mode: Mode | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Scaling:
    """Run a script at each number of ranks on this machine, several times in random order, and compare.

    Each run times its steps without the profiler, then records some with it. Every rank has the same number of threads
    at every size: by default a rank's share at the largest size. Call it in the main thread of a process without other
    threads.

    Args:
        script: any script that steps a torch optimizer; ``{ranks}`` in its arguments is the number of ranks.
        ranks: numbers of ranks, the reference first.
        repeats: runs per number of ranks; below three there are no verdicts.
        steps: number of timed steps per run.
        skip: number of steps to skip at the beginning.
        mode: whether the global batch is constant ("strong") or grows with the ranks ("weak"), if it is not detected.
        say: called with a progress message before each run.

    Raises:
        ConfigError: a number is out of range.
        LaunchError: a run failed or is too short.
    """
    if len(ranks) < 2 or min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise ConfigError(f"scaling needs two different numbers of ranks or more, each at least 1, got {list(ranks)}")
    if min(repeats, steps, skip) < 1:
        raise ConfigError(f"repeats, steps and skip must be at least 1, got {repeats}, {steps} and {skip}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_threads = script.num_threads or max(1, cores // max(ranks))
    script = replace(script, num_threads=num_threads)
    if max(ranks) * num_threads > cores:
        say(f"{max(ranks)} ranks of {num_threads} threads share {cores} cores: on CPUs this alone costs time")
    source = random.Random(0)  # noqa: S311  (an order, no secret)
    runs: list[TimedRun] = []
    for repeat in range(repeats):
        for size in source.sample(list(ranks), len(ranks)):
            say(f"run {len(runs) + 1} of {repeats * len(ranks)}: {size} rank{'s' * (size > 1)}")
            runs.append(_run(script, size, repeat, steps=steps, skip=skip))
    sizes, seen = evaluate_scaling(runs, list(ranks), mode)
    return Scaling(runs=runs, sizes=sizes, mode=seen, steps=steps, command=(script.path, *script.args))


def _run(script: Script, size: int, repeat: int, *, steps: int, skip: int) -> TimedRun:
    folder = tempfile.mkdtemp(prefix="rankwise-scaling-")
    try:
        task = Task(folder=folder, skip=skip, timed=steps, traced=_NUM_TRACED)
        facts = run_recorded(script, size, task)
        share = profile_traces(Path(folder)).share()
    finally:
        shutil.rmtree(folder)
    counts = [count for rank in facts for count in rank["samples"]]
    whole = None not in counts
    return TimedRun(
        ranks=size,
        repeat=repeat,
        step_ms=max(statistics.fmean(rank["walls_ns"]) for rank in facts) / 1e6,
        global_batch=sum(counts) / steps if whole else None,
        share=share,
    )


def evaluate_scaling(
    runs: Sequence[TimedRun], ranks: Sequence[int], mode: Mode | None
) -> tuple[list[Size], Mode | None]:
    """Compare the sizes with the first one; return them with the mode, as detected from the batches or as given.

    Raises:
        LaunchError: the batches are known for some runs only.
    """
    by_size = {size: [run for run in runs if run.ranks == size] for size in ranks}
    known = {run.global_batch is not None for run in runs}
    if len(known) > 1:
        raise LaunchError("the number of samples of a step is known for some runs only: give all batches the same form")
    batches = {size: statistics.median(run.global_batch or 0.0 for run in mine) for size, mine in by_size.items()}
    seen = _mode(batches) if known == {True} else mode
    first = ranks[0]
    sizes = []
    for size, mine in by_size.items():
        if known == {True}:
            work = batches[size] / size / (batches[first] / first)
        else:
            work = first / size if seen == "strong" else 1.0
        sizes.append(_evaluate(mine, by_size[first], work if seen is not None else None))
    return sizes, seen


def _mode(batches: dict[int, float]) -> Mode:
    (first, batch), *others = batches.items()
    if all(abs(other / batch - 1) < _SAME for _, other in others):
        return "strong"
    return "weak" if all(abs(other / batch * first / size - 1) < _SAME for size, other in others) else "other"


def _evaluate(mine: Sequence[TimedRun], first: Sequence[TimedRun], work: float | None) -> Size:
    """Compare a size with the first one; `work` is a rank's work per step relative to the first size."""
    rates = spread([run.throughput for run in mine])
    size = Size(ranks=mine[0].ranks, throughput=rates.median, low=rates.low, high=rates.high)
    if mine is first:
        one = None if work is None else 1.0
        text = "reference for the others"
        return replace(size, efficiency=one, efficiency_low=one, efficiency_high=one, text=text)
    if work is None:
        return replace(size, text="strong or weak is unknown: give --mode")
    ours, theirs = [run.step_ms for run in mine], [run.step_ms * work for run in first]
    pairs = spread([ideal / step for ideal in theirs for step in ours])
    efficiency = statistics.median(theirs) / statistics.median(ours)
    lost = _lost(mine, first, statistics.median(ours), statistics.median(theirs))
    verdict = f"{'loses' if efficiency < 1 else 'gains'} {abs(1 - efficiency):.0%}" if differ(ours, theirs) else None
    return replace(
        size,
        efficiency=efficiency,
        efficiency_low=min(pairs.low, efficiency),
        efficiency_high=max(pairs.high, efficiency),
        verdict=verdict,
        text=_no_verdict(mine, first) if verdict is None else verdict + _dearest(lost) * (efficiency < 1),
        lost=lost,
    )


def _no_verdict(mine: Sequence[TimedRun], first: Sequence[TimedRun]) -> str:
    if min(len(mine), len(first)) < LEAST_RUNS:
        return f"no verdict: {LEAST_RUNS} runs of each size are needed to measure their noise"
    return "no verdict: the noise of the runs exceeds the effect"


def _dearest(lost: dict[str, float]) -> str:
    """Return the parts that lose most, to follow a verdict; "" if none loses a relevant time."""
    ranked = sorted(lost.items(), key=lambda item: -item[1])[:3]
    told = ", ".join(f"{part} {share:.0%}" for part, share in ranked if share > 0.01)
    return f": {told}" if told else ""


def _lost(mine: Sequence[TimedRun], first: Sequence[TimedRun], step_ms: float, ideal_ms: float) -> dict[str, float]:
    """Return by how much each part exceeds its time in the ideal step, as shares of the step; the sum is the loss."""
    lost = {}
    for part in PARTS:
        here = statistics.fmean(run.share[part] for run in mine) * step_ms
        there = statistics.fmean(run.share[part] for run in first) * ideal_ms
        lost[part] = (here - there) / step_ms
    return lost
