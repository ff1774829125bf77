"""Collect evidence about a running Slurm job: ask every node with a job step, and combine the answers.

The module also runs on each node: ``python -m rankwise.diagnose.watch.slurm FOLDER [STEP]``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankwise._files import write_whole
from rankwise._process.slurm import expand_hosts
from rankwise.diagnose.watch.evidence import Evidence, collect
from rankwise.diagnose.watch.jobs import RunningJob, entries_of, running_jobs
from rankwise.errors import ConfigError, LaunchError, RankwiseError
from rankwise.launch.slurm.queue import job_fields
from rankwise.launch.slurm.start import state_folder

_POLL_S = 0.1
_END_S = 5.0  # time for srun to end after all answers


def inspect_slurm_job(job: str, timeout_s: float) -> tuple[Evidence, dict[str, str]]:
    """Ask all nodes of a running job for their ranks' stacks and last collectives.

    Args:
        job: Slurm's job id: "12", "12_3" of an array, or with a step, "12.0", "12.batch".
        timeout_s: how long to wait for the nodes, in seconds.

    Returns:
        The evidence about the ranks, and for each node without an answer the reason, by name.

    Raises:
        ConfigError: the job is not running, has several steps with ranks, or no node answers.
        LaunchError: Slurm is not installed, or does not answer.
    """
    job_id, _, step = job.partition(".")
    if not re.fullmatch(r"\d+([_+]\d+)?(\.(\d+|batch))?", job, re.ASCII):
        raise ConfigError(f"--slurm needs a job id, such as 12, 12_3, 12.0 or 12.batch, got {job!r}: see rankwise jobs")
    fields = job_fields(job_id)
    if fields is None:
        raise ConfigError(
            f"--slurm needs a running job, but Slurm has no job {job_id!r} (or no longer): see rankwise jobs"
        )
    state, reason = fields.get("JobState", "UNKNOWN"), fields.get("Reason", "None")
    if state != "RUNNING":
        why = "" if reason == "None" else f" ({reason})"
        raise ConfigError(f"--slurm needs a running job, but job {job_id} is {state}{why}")
    nodes = expand_hosts(fields["NodeList"])
    with _shared_folder() as folder:
        said = _ask(fields["JobId"], nodes, folder, step, timeout_s)
        answers = {node: json.loads((folder / f"{node}.json").read_bytes()) for node in _answered(folder, nodes)}
    steps = sorted({found for answer in answers.values() for found in answer.get("steps", ())})
    if len(steps) > 1:
        named = ", ".join(f"{job_id}.{found}" for found in steps)
        raise ConfigError(f"job {job_id} has ranks in several steps: give --slurm one of {named}")
    silent = {node: f"no answer within {timeout_s:g} s" for node in nodes if node not in answers}
    silent |= {node: answer["error"] for node, answer in answers.items() if "error" in answer}
    found = [Evidence.from_json(answer["evidence"]) for answer in answers.values() if "evidence" in answer]
    if not found:
        told = "; ".join(f"{node}: {why}" for node, why in silent.items())
        raise ConfigError(f"no node of job {job_id} answered: {told}{'; srun: ' + said if said else ''}")
    whole = found[0]
    for other in found[1:]:
        whole = whole.with_others(other)
    return whole, silent


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """Create a folder shared with the nodes and private to this user, as the output of several tasks would be mixed.

    Raises:
        LaunchError: it cannot be created.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="watch-", dir=state_folder()))
    except OSError as error:
        raise LaunchError(
            f"the folder for the answers of the nodes cannot be created: {error}; set XDG_STATE_HOME to a folder that "
            "the nodes share"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answered(folder: Path, nodes: Sequence[str]) -> list[str]:
    return [node for node in nodes if (folder / f"{node}.json").exists()]


def _ask(job_id: str, nodes: Sequence[str], folder: Path, step: str, timeout_s: float) -> str:
    """Run this module on every node until all have answered; return srun's errors."""
    if shutil.which("srun") is None:
        raise LaunchError(
            "--slurm needs srun: run this where Slurm's commands are installed, for example on the login node"
        )
    command = ["srun", "--overlap", f"--jobid={job_id}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}"]
    command += ["--ntasks-per-node=1", "--cpu-bind=none", "--chdir=/", "--quiet", "--job-name=rankwise-watch"]
    command += [sys.executable, "-P", "-m", "rankwise.diagnose.watch.slurm", str(folder), step]
    # inside a job, srun would read these variables as options of this step
    foreign = ("SLURM_", "SRUN_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(foreign) or k == "SLURM_CONF"}
    errors = folder / "errors"
    with errors.open("wb") as told:
        srun = subprocess.Popen(  # noqa: S603
            command, env=environ, stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True
        )
    deadline = time.monotonic() + timeout_s
    try:
        while srun.poll() is None and len(_answered(folder, nodes)) < len(nodes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if len(_answered(folder, nodes)) == len(nodes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                srun.wait(_END_S)
    finally:
        if srun.poll() is None:
            srun.terminate()  # ends its tasks too, if a node is gone or hangs
        try:
            srun.wait(_END_S)
        except subprocess.TimeoutExpired:
            srun.kill()
            srun.wait()
    return " ".join(errors.read_text(errors="replace").split())


def _inspect_local(jobs: Sequence[RunningJob], job_id: str, node: str, step: str) -> dict[str, object]:
    """Return the answer of this node.

    Args:
        jobs: all jobs of this user on this node.
        job_id: Slurm's id of the job.
        node: Slurm's name of this node, because nodes may share a file system for their vitals.
        step: the step; "" = the only one.
    """
    mine = [job for job in jobs if job.variables.get("SLURM_JOB_ID") == job_id]
    ours = [job for job in mine if job.variables.get("SLURMD_NODENAME", node) == node]
    steps = {_step(job.variables): job for job in ours}
    if step:
        ours = [job for job in ours if _step(job.variables) == step]
    elif len(steps) > 1:
        return {"steps": sorted(steps)}
    if not ours:
        what = f"step {step}" if step else "this job"
        why = "it has ended, has not started, or was started without rankwise run and without RANKWISE_WATCH"
        return {"error": f"no ranks of {what} ({why})"}
    ranks = [vital.rank for job in ours for vital in job.ranks]
    if len(set(ranks)) < len(ranks):
        launchers = ", ".join(str(job.launcher) for job in ours)
        why = f"several launchers of one step with the same ranks: {launchers}"
        return {"error": f"{why}; run rankwise watch PID on the node itself"}
    found = collect([entry for job in ours for entry in entries_of(job)])
    return {"steps": sorted({_step(job.variables) for job in ours}), "evidence": found.to_json()}


def _step(variables: Mapping[str, str]) -> str:
    """Return the step of a process; "batch" for a process of the batch script without srun."""
    return variables.get("SLURM_STEP_ID") or "batch"


def _answer(folder: Path, step: str) -> None:
    node = os.environ["SLURMD_NODENAME"]
    try:
        answer = _inspect_local(running_jobs(), os.environ["SLURM_JOB_ID"], node, step)
    except (RankwiseError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    write_whole(folder / f"{node}.json", json.dumps(answer).encode(), durable=False)


if __name__ == "__main__":
    _answer(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
