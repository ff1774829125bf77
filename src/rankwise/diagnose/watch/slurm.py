"""A look at a running job of Slurm: every node of it is asked by a job step, the answers are put together.

As a module it is what runs on a node: ``python -m rankwise.diagnose.watch.slurm FOLDER [STEP]``.
"""

from __future__ import annotations

import contextlib
import json
import os
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

__all__ = ["look_at_slurm"]

_POLL_S = 0.1
_END_S = 5.0  # for srun to end, once all is said


def look_at_slurm(job: str, timeout_s: float) -> tuple[Evidence, dict[str, str]]:
    """Ask all nodes of a running job for their ranks' stacks and last collectives.

    Args:
        job: as Slurm names it: "12", "12_3" of an array, or with a step, "12.0", "12.batch".
        timeout_s: how long to wait for the nodes, in seconds.

    Returns:
        What is known of the ranks, and what the nodes without an answer lack, by their names.

    Raises:
        ConfigError: the job does not run, has several steps with ranks, or no node has an answer.
        LaunchError: Slurm is not here, or does not answer.
    """
    job_id, _, step = job.partition(".")
    fields = job_fields(job_id)
    if fields is None:
        raise ConfigError(f"--slurm wants a job that runs, Slurm knows no job {job_id!r} (any more): see rankwise jobs")
    state, reason = fields.get("JobState", "UNKNOWN"), fields.get("Reason", "None")
    if state != "RUNNING":
        why = "" if reason == "None" else f" ({reason})"
        raise ConfigError(f"--slurm wants a job that runs, job {job_id} is {state}{why}: nothing of it can be asked")
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
        raise ConfigError(f"no node of job {job_id} has an answer: {told}{'; srun: ' + said if said else ''}")
    whole = found[0]
    for other in found[1:]:
        whole = whole.with_others(other)
    return whole, silent


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """A folder that the nodes see and only this user can enter: what several tasks print comes mixed."""
    folder = Path(tempfile.mkdtemp(prefix="watch-", dir=state_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answered(folder: Path, nodes: Sequence[str]) -> list[str]:
    return [node for node in nodes if (folder / f"{node}.json").exists()]


def _ask(job_id: str, nodes: Sequence[str], folder: Path, step: str, timeout_s: float) -> str:
    """Run this module on every node until all have answered; return what srun complained of."""
    if shutil.which("srun") is None:
        raise LaunchError("--slurm needs srun: run this where Slurm's commands are, for example on the login node")
    command = ["srun", "--overlap", f"--jobid={job_id}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}"]
    command += ["--ntasks-per-node=1", "--cpu-bind=none", "--chdir=/", "--quiet", "--job-name=rankwise-watch"]
    command += [sys.executable, "-P", "-m", "rankwise.diagnose.watch.slurm", str(folder), step]
    # inside a job its variables would be read as wishes for this step
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
            srun.terminate()  # its tasks too, where a node is gone or hangs
        try:
            srun.wait(_END_S)
        except subprocess.TimeoutExpired:
            srun.kill()
            srun.wait()
    return " ".join(errors.read_text(errors="replace").split())


def _look_here(jobs: Sequence[RunningJob], job_id: str, node: str, step: str) -> dict[str, object]:
    """Return the answer of this node.

    Args:
        jobs: all that this user runs here.
        job_id: Slurm's number of the one to look at.
        node: Slurm's name of this node: nodes may share a file system for their vitals.
        step: the one to look at; "" = the only one.
    """
    ours = [job for job in jobs if _of(job.variables, job_id, node)]
    steps = {_step(job.variables): job for job in ours}
    if step:
        ours = [job for job in ours if _step(job.variables) == step]
    elif len(steps) > 1:
        return {"steps": sorted(steps)}
    if not ours:
        what = f"step {step}" if step else "this job"
        why = "it has ended, has not begun, or is watched neither by rankwise run nor by RANKWISE_WATCH"
        return {"error": f"no ranks of {what} ({why})"}
    ranks = [vital.rank for job in ours for vital in job.ranks]
    if len(set(ranks)) < len(ranks):
        launchers = ", ".join(str(job.launcher) for job in ours)
        why = f"several launchers of one step with the same ranks: {launchers}"
        return {"error": f"{why}; ask on the node itself, rankwise watch PID"}
    found = collect([entry for job in ours for entry in entries_of(job)])
    return {"steps": sorted({_step(job.variables) for job in ours}), "evidence": found.to_json()}


def _of(variables: Mapping[str, str], job_id: str, node: str) -> bool:
    return variables.get("SLURM_JOB_ID") == job_id and variables.get("SLURMD_NODENAME", node) == node


def _step(variables: Mapping[str, str]) -> str:
    """The step of a process; what the batch script starts without srun has none."""
    return variables.get("SLURM_STEP_ID") or "batch"


def _answer(folder: Path, step: str) -> None:
    node = os.environ["SLURMD_NODENAME"]
    try:
        answer = _look_here(running_jobs(), os.environ["SLURM_JOB_ID"], node, step)
    except (RankwiseError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    write_whole(folder / f"{node}.json", json.dumps(answer).encode(), durable=False)


if __name__ == "__main__":
    _answer(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
