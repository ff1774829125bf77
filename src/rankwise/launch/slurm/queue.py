"""Query job states with Slurm's commands, with or without accounting."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rankwise.errors import LaunchError

_PATIENCE_S = 60.0
_UNDER_WAY = frozenset(
    {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING"}
    | {"SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "UNKNOWN"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """The state of a job in Slurm.

    Attributes:
        state: in Slurm's words; "UNKNOWN" if Slurm does not know the job any more (or not yet).
        reason: Slurm's reason for the state, "" without one.
        nodes: the nodes on which it runs, "" if it does not run.
    """

    state: str = "UNKNOWN"
    reason: str = ""
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again; a preempted or lost job that is requeued is pending instead."""
        return self.state not in _UNDER_WAY

    @property
    def has_left_queue(self) -> bool:
        """Whether it has ended, or Slurm does not know it."""
        return self.has_ended or self.state == "UNKNOWN"

    def __str__(self) -> str:
        return " ".join([self.state, *([f"({self.reason})"] if self.reason else []), self.nodes]).rstrip()


def slurm_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; a non-zero exit status is no error here.

    Raises:
        LaunchError: the command is not installed, or does not answer.
    """
    if shutil.which(words[0]) is None:
        raise LaunchError(f"{words[0]} was not found: this needs a machine that can submit Slurm jobs")
    try:
        return subprocess.run(  # noqa: S603
            words,
            capture_output=True,
            text=True,
            errors="replace",  # names of jobs in any encoding
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"{' '.join(words)} does not answer within {_PATIENCE_S:g} s") from error


def job_states(job_ids: Sequence[str]) -> dict[str, JobState]:
    """Return the states of jobs; for those that the controller has forgotten, from accounting if available.

    Raises:
        LaunchError: the controller does not answer.
    """
    found = {job_id: JobState() for job_id in job_ids}
    if not found:
        return found
    # by id, because a cluster may have a hundred thousand other jobs
    asked = "--jobs=" + ",".join(found)
    done = slurm_command("squeue", asked, "--noheader", "--states=all", "--format=%i|%T|%r|%N")
    if done.returncode and "Invalid job id" not in done.stderr:  # printed if all of them are forgotten
        raise LaunchError(f"Slurm does not answer: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        job_id, state, reason, nodes = line.split("|", 3)
        if job_id in found:
            found[job_id] = JobState(state=state, reason="" if reason == "None" else reason, nodes=nodes)
    forgotten = [job_id for job_id, state in found.items() if state.state == "UNKNOWN"]
    if forgotten and shutil.which("sacct"):
        done = slurm_command("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,NodeList", "-j", ",".join(forgotten))
        for line in done.stdout.splitlines() if done.returncode == 0 else []:
            job_id, state, nodes = line.split("|", 2)
            if job_id in found:
                found[job_id] = JobState(state=state.split()[0], nodes=nodes)  # "CANCELLED by 1000"
    return found


def job_fields(job_id: str) -> dict[str, str] | None:
    """Return the controller's fields of a job of any user; None if it does not know the job.

    Raises:
        LaunchError: the controller does not answer.
    """
    done = slurm_command("scontrol", "--oneliner", "show", "job", job_id)
    if done.returncode and "Invalid job id" not in done.stderr:
        raise LaunchError(f"Slurm does not answer: {done.stderr.strip()}")
    if not done.stdout.startswith("JobId="):
        return None
    return dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)


def end_time(job_id: str) -> float:
    """Return when a running job reaches its time limit, in seconds since the epoch; infinity without a limit."""
    try:
        return datetime.fromisoformat((job_fields(job_id) or {}).get("EndTime", "")).timestamp()
    except (ValueError, LaunchError):  # "Unknown", or no answer
        return math.inf
