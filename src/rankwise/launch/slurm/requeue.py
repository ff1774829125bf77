"""Decide whether to requeue a job: by the number of requeues and by the progress of its last runs."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from rankwise._files import write_whole
from rankwise.launch.local.console import Console
from rankwise.launch.slurm.allocation import Allocation
from rankwise.launch.slurm.queue import job_fields, slurm_command
from rankwise.launch.slurm.start import state_folder

MAX_REQUEUES = 100
_FUTILE = 2  # requeues in a row without progress after which to stop
_LEAVING = frozenset({"PENDING", "COMPLETING", "REQUEUED", "PREEMPTED", "CONFIGURING"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a run had come when its job stopped; None: unknown.

    Attributes:
        checkpoint: step of the newest checkpoint in the run directory.
        step: the highest step that a rank reported.
    """

    checkpoint: int | None = None
    step: int | None = None

    @classmethod
    def find(cls, run_dir: Path | None, step: int | None) -> Self:
        """Read the newest step from the names of the checkpoints in a run directory."""
        names = [] if run_dir is None else [path.name for path in (run_dir / "checkpoints").glob("step-*")]
        steps = [int(found[1]) for name in names if (found := re.fullmatch(r"step-(\d+)", name))]
        return cls(checkpoint=max(steps, default=None), step=step)

    def is_beyond(self, before: Self) -> bool:
        """Whether it is further than before, or unknown: compare checkpoints, or steps if there are none."""
        if self.checkpoint is not None and before.checkpoint is not None:
            return self.checkpoint > before.checkpoint
        if self.checkpoint is not None or before.checkpoint is not None:
            return self.checkpoint is not None
        return self.step is None or before.step is None or self.step > before.step

    def __str__(self) -> str:
        if self.checkpoint is not None:
            return f"the newest checkpoint is still that of step {self.checkpoint}"
        return f"no checkpoint in the run directory, and no step after {self.step}"


def forget_progress(allocation: Allocation) -> None:
    """Remove the record of the job's runs: it will not run again."""
    _progress_file(allocation).unlink(missing_ok=True)


def requeue_job(allocation: Allocation, console: Console, progress: Progress, *, most: int) -> str:
    """Requeue the job; return why not, "" if it was requeued.

    `most` counts all requeues, by this launcher or anyone else.
    """
    file, runs = _progress_file(allocation), [progress]
    # if the job was never requeued, an existing file belongs to an older job of the same id
    if allocation.restarts and file.exists():
        runs = [*(Progress(**fields) for fields in json.loads(file.read_bytes())), progress][-_FUTILE - 1 :]
    write_whole(file, json.dumps([asdict(run) for run in runs]).encode())
    refused = _refusal(allocation, runs, most)
    if not refused:
        count = f"requeue {allocation.restarts + 1} of at most {most}"
        console.log(f"job {allocation.job_id} goes back into the queue ({count})")
        console.flush()
        done = slurm_command("scontrol", "requeue", allocation.job_id)
        # a requeue ends all processes of the job, including this scontrol command
        if done.returncode > 0 and (job_fields(allocation.job_id) or {}).get("JobState") not in _LEAVING:
            refused = f"cannot be requeued: {done.stderr.strip()}; submit it again"
    if refused:
        forget_progress(allocation)
        refused = f"job {allocation.job_id} {refused}"
        console.log(refused)
    return refused


def _refusal(allocation: Allocation, runs: list[Progress], most: int) -> str:
    if allocation.restarts >= most:
        done = f"was requeued {allocation.restarts} time(s), at most {most} are allowed"
        return f"{done} (--max-requeues): submit it again"
    if len(runs) > _FUTILE and not any(run.is_beyond(before) for before, run in itertools.pairwise(runs)):
        return (
            f"is not requeued: {_FUTILE} requeues in a row have brought no progress, {runs[-1]}. Its runs end "
            "before they can save: give it more time (--time), save more often, or find out what ends it"
        )
    return ""


def _progress_file(allocation: Allocation) -> Path:
    return state_folder() / f"progress-{allocation.job_id}.json"
