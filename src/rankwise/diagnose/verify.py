"""`rankwise verify`: run a script at several world sizes, and find the first step at which they differ."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rankwise.diagnose.comparison import Run, Verdict, check_one_run, compare_runs, samples_apart, tensors_apart
from rankwise.diagnose.script_run import Script, run_observed
from rankwise.diagnose.verify_recorder import FOLDER, KILL, STEPS, STOP
from rankwise.errors import ConfigError


def verify_script(
    script: str,
    args: Sequence[str] = (),
    *,
    ranks: Sequence[int] = (1, 2, 3),
    steps: int = 20,
    kill: bool = False,
    tolerance: float | None = None,
    folder: Path,
    stop: bool = False,
    timeout_s: float | None = None,
) -> Verdict:
    """Run a script at each number of ranks on this machine, with one thread per rank, and compare the trainings.

    Every run has its own run directory; ``{ranks}`` and ``{dir}`` in `args` are replaced by its number of ranks and a
    fresh folder. Call it in the main thread of a process without other threads.

    Args:
        script: path of the script, with rankwise's loops or any loop that steps a torch optimizer.
        args: its arguments.
        ranks: numbers of ranks; the first is the reference. A single number is checked by itself.
        steps: number of optimizer steps to compare.
        kill: repeat the run with the last number of ranks, kill a rank with SIGKILL at two thirds of the steps, restart
            all, and compare bit by bit.
        tolerance: relative difference that counts as rounding; None = by the parameters' dtype, growing with the steps.
        folder: folder for the runs and their records.
        stop: end each run after these steps; later evaluations of the script are not recorded.
        timeout_s: time limit of each run; None: none.

    Raises:
        ConfigError: an argument is out of range.
    """
    if not ranks or min(ranks) < 1 or len(set(ranks)) < len(ranks):
        raise ConfigError(f"verify needs different numbers of ranks, each at least 1, got {list(ranks)}")
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, got {steps}")
    verdict, runs = Verdict(), []
    chosen = Script(path=script, args=tuple(args), num_threads=1, timeout_s=timeout_s)
    env = {STEPS: str(steps), **({STOP: "1"} if stop else {})}
    for size in ranks:
        run = _record(chosen, size, folder / f"ranks-{size}", env, verdict)
        if run is None:
            return verdict
        runs.append(run)
        said = {(found.what, found.text) for found in verdict.findings}
        verdict.findings += [found for found in check_one_run(run) if (found.what, found.text) not in said]
    for run in runs[1:]:
        compare_runs(runs[0], run, tolerance, verdict)
    if kill and runs[-1].num_steps > 1:
        _killed(chosen, runs[-1], folder / "killed", env, verdict)
    # stable sort: a finding within one run explains differences between runs, so it comes first
    verdict.findings.sort(key=lambda found: math.inf if found.step is None else found.step)
    return verdict


def _record(script: Script, size: int, place: Path, env: dict[str, str], verdict: Verdict) -> Run | None:
    """Run the script once; return its records, None if it failed, which the verdict then says."""
    place.mkdir(parents=True)
    name = f"{size} rank{'s' * (size > 1)}{' with a kill' * (KILL in env)}"
    outcome = run_observed(
        "rankwise.diagnose",
        script,
        num_ranks=size,
        place=place,
        env={FOLDER: str(place), **env},
        max_restarts=int(KILL in env),
    )
    run = Run(name, size, [])
    if outcome.exitcode:  # a killed rank may have left half a line
        verdict.findings.append(run.finding(None, "failed", outcome.text.strip()))
        return None
    for rank in range(size):
        files = sorted(place.glob(f"rank-{rank}.attempt-*.jsonl"))
        run.lines.append([json.loads(line) for line in files[-1].read_text().splitlines()] if files else [])
    if not run.num_steps:
        reason = (
            "the optimizers are not from torch, or the run was already finished: pass its folder as {dir} in the "
            "arguments"
        )
        verdict.findings.append(run.finding(None, "failed", "no optimizer step", reason))
        return None
    return run


def _killed(script: Script, wanted: Run, place: Path, env: dict[str, str], verdict: Verdict) -> None:
    """Repeat the last run with a rank killed, and compare it with the undisturbed one bit by bit."""
    at = max(1, 2 * wanted.num_steps // 3)
    size = wanted.num_ranks
    run = _record(script, size, place, env | {KILL: f"{size - 1}:{at}"}, verdict)
    if run is None:
        return
    states = [lines[0]["before"] for lines in wanted.steps()]
    new = list(run.steps())
    if new[0][0]["before"] not in states:
        text = f"after the kill at step {at}, it continued from a state that the undisturbed run never had"
        reason = "something is missing from the checkpoint: optimizer, scheduler, random state, position of the data"
        verdict.findings.append(run.finding(at, "restart", text, reason))
        return
    begin = states.index(new[0][0]["before"])
    for number, (old, now) in enumerate(zip(list(wanted.steps())[begin:], new, strict=False), start=begin):
        found = samples_apart(run, number, old, now)
        name, apart = tensors_apart(old[0]["params"], now[0]["params"])
        if found is None and apart:
            text = f"{name} differs by {apart:.2g} relative from the undisturbed run after a kill at step {at}"
            found = run.finding(number, "restart", text)
        if found is not None:
            verdict.findings.append(found)
            return
    told = f"continued from step {begin}" if begin else "started again, as nothing had been saved"
    verdict.agreement.append(f"{run.name} at step {at}: {told}, bits")
