"""The launcher inside an allocation: start the ranks on all nodes, restart them, and requeue the job."""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from dataclasses import replace
from pathlib import Path

from rankwise.errors import ConfigError
from rankwise.launch.failures.record import keep
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.environment import with_time_left
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.pump import next_logs
from rankwise.launch.slurm.allocation import Allocation
from rankwise.launch.slurm.requeue import Progress, forget_progress, requeue_job
from rankwise.launch.slurm.start import Record, Start
from rankwise.launch.slurm.step import Ending, Step


def run_on_nodes(
    job: Job,
    allocation: Allocation,
    *,
    max_requeues: int = 0,
    call: bytes | None = None,
    values: Path | None = None,
    container: str | None = None,
    warn_s: float | None = None,
) -> Ending:
    """Run a launch on all nodes of the allocation, with `job.num_ranks` ranks on each; call it in the main thread.

    Args:
        job: the launch; a restart restarts all nodes together.
        allocation: the allocation to use.
        max_requeues: how often the Slurm job may be requeued after its ranks have saved because they were asked to, or
            after a node is lost; 0: never.
        call: the pickled call, for a target of kind "call".
        values: existing folder for the values by rank.
        container: image in which the ranks run, None for none.
        warn_s: seconds before the job's time limit at which the ranks are asked to save; None leaves it to Slurm.

    Raises:
        ConfigError: `min_ranks` is set.
        LaunchError: srun or the folder for the start is not usable.
    """
    if job.min_ranks is not None:
        raise ConfigError("--min-ranks is only valid on one machine: in a Slurm allocation request fewer nodes instead")
    console, ending, attempt = Console(), Ending(), 0
    begun_s, most = time.monotonic(), job.max_restarts
    run_id = f"rankwise-slurm-{allocation.job_id}-{secrets.token_hex(4)}"
    nodes = allocation.num_nodes
    console.log(
        f"Slurm job {allocation.job_id}: {nodes * job.num_ranks} rank(s), {job.num_ranks} on each of {nodes} "
        f"node(s) {allocation.nodes}" + (f", requeued {allocation.restarts} time(s)" if allocation.restarts else "")
    )
    if warning := _shell_warning(os.getppid()):
        console.log(warning)
    with Loop() as loop:
        while True:
            start = Start(
                job=with_time_left(job, begun_s),
                num_nodes=nodes,
                attempt=attempt,
                run_id=run_id,
                logs=next_logs(job.logs, job.run_dir),
                secret=secrets.token_hex(16),
            )
            step = Step(start, allocation, loop, console, container=container, warn_s=warn_s)
            ending = step.run(call, values)
            if ending.record is not None:
                log_text(console, ending.record.text)
                # without a failed rank: a node was lost or could not start
                cause, code = ending.record.text.partition("\n")[0], ending.record.exitcode
                lost = {"time": ending.record.time_s, "attempt": attempt, "cause": cause, "exitcode": code}
                keep(job.run_dir, ending.record.failure or lost, console.log)
            if ending.record is None or ending.interrupted is not None or attempt >= most:
                break
            attempt += 1
            console.log(f"starting all ranks again, restart {attempt} of {most}")
        ending = _after(ending, job, allocation, console, max_requeues)
    console.flush()
    return ending


def _after(ending: Ending, job: Job, allocation: Allocation, console: Console, max_requeues: int) -> Ending:
    """Requeue the job if that continues the run; print so, or why not."""
    if ending.again:
        said = "the ranks have saved and ended as requested"
        if not max_requeues:
            said += ": the same command resumes the run (--requeue lets Slurm start it again)"
        console.log(said)
    if not max_requeues or not (ending.again or ending.lost):
        if ending.interrupted is None:  # else Slurm itself may start it again
            forget_progress(allocation)
        return ending
    refused = requeue_job(allocation, console, Progress.find(job.run_dir, ending.step), most=max_requeues)
    if not refused:
        return replace(ending, requeued=True)
    if ending.record is not None:
        return replace(ending, record=replace(ending.record, text=f"{ending.record.text}\n{refused}"))
    return replace(ending, record=Record(node=0, text=refused, exitcode=ending.exitcode))


def _shell_warning(parent: int) -> str:
    """Return a message if the batch shell would be killed by the warning signal that it requests, else "".

    `#SBATCH --signal=B:USR1@300` signals only the batch shell. A shell that neither traps the signal nor was replaced
    by this launcher (`exec`) ends, and the job with it.
    """
    try:
        words = Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace").split("\0")
        script = next((word for word in words if word.endswith("slurm_script")), "")
        found = re.search(r"^#SBATCH\b.*--signal[= ]B:(\w+)", Path(script).read_text(errors="replace"), re.MULTILINE)
        status = Path(f"/proc/{parent}/status").read_text(errors="replace")
    except OSError:
        return ""
    name = "" if found is None else found[1].upper()
    number = int(name) if name.isdecimal() else getattr(signal, f"SIG{name.removeprefix('SIG')}", 0)
    masks = (int(mask, 16) for mask in re.findall(r"^Sig(?:Cgt|Ign):\s*(\w+)", status, re.MULTILINE))
    if not number or any(mask >> (number - 1) & 1 for mask in masks):
        return ""
    return (
        f"--signal=B:{name} signals only the batch shell, which will die of it and end this job: write "
        "`exec rankwise run ...` as its last line, or leave the B: out"
    )
