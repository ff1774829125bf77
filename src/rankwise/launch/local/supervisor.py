"""The whole launch: attempts, restarts, and the final message."""

from __future__ import annotations

import os
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from rankwise.errors import LaunchError
from rankwise.launch.hardware import num_visible_gpus
from rankwise.launch.job import Job
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.environment import Part, with_time_left
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.ports import HeldPort, check_loopback
from rankwise.launch.local.pump import next_logs

if TYPE_CHECKING:
    from rankwise.launch.failures.outcome import AttemptEnd, Outcome
    from rankwise.launch.local.forks.process import ServerProcess


def supervise(
    job: Job, *, loop: Loop | None = None, early: ServerProcess | None = None, tell_last: bool = True
) -> Outcome:
    """Supervise all ranks of a launch on one machine, as `launch.supervise`.

    Args:
        job: what to run.
        loop: an entered loop whose descriptors are served while the ranks run; None creates one.
        early: a process that may become the fork server of the first attempt; the caller closes it.
        tell_last: print the failure that ends the launch; it stands in `Outcome.text` in any case.

    Raises:
        LaunchError: the ranks cannot be started (port in use, log folder not writable).
    """
    console = Console()
    with nullcontext(loop) if loop is not None else Loop() as entered:
        outcome = _attempts(job, entered, console, early)
    if tell_last and outcome.text:
        log_text(console, outcome.text)
    console.flush()
    return outcome


def _attempts(job: Job, loop: Loop, console: Console, early: ServerProcess | None) -> Outcome:
    run_id = f"rankwise-{os.getpid()}-{os.urandom(4).hex()}"
    begun_s, gpus = time.monotonic(), num_visible_gpus() if job.min_ranks is not None else 0
    number = failures = 0  # attempts of the launch; failures at this number of ranks
    if job.num_ranks > 1:
        check_loopback(job.master_addr)
    while True:
        with closing(HeldPort(job.master_port, alone=True)) as port:
            port.hand_over()
            attempt = Attempt(
                with_time_left(job, begun_s),
                Part(world_size=job.num_ranks, master_addr=job.master_addr, master_port=port.number),
                number=number,
                run_id=run_id,
                loop=loop,
                console=console,
                logs=next_logs(job.logs, job.run_dir),
                may_fork=True,
                early=early,
            )
            end, text, why = _run(attempt, job, console)
        number, failures, early = number + 1, failures + 1, None
        following = _following(job, failures, had_gpus=gpus, started=len(attempt.ranks)) if why else None
        if following is None or end.interrupted is not None:
            if end.again:
                console.log("the ranks have saved and ended as requested: the same command resumes the run")
            from rankwise.launch.failures.outcome import Outcome

            return Outcome(failure=end.failure, interrupted=end.interrupted, again=end.again, text=text)
        log_text(console, text)
        if following is job:
            what = f"starting all ranks again, restart {failures} of {job.max_restarts}"
        else:
            what, failures = f"continuing with {following.num_ranks} of {job.num_ranks} ranks", 0
        console.log(f"{what}, because {why}")
        job = following


def _run(attempt: Attempt, job: Job, console: Console) -> tuple[AttemptEnd, str, str]:
    """Run an attempt; return its end, a text about a failure, and in a few words why ranks start again."""
    try:
        end = attempt.run()
    except LaunchError as error:
        if not attempt.ranks or _with_ranks(job, len(attempt.ranks)) is None:
            raise
        return attempt.end(None), str(error), "no more ranks could be started"
    if end.failure is None:
        return end, "", ""
    from rankwise.launch.failures.record import keep

    text, entry = end.describe()
    keep(job.run_dir, entry, console.log)
    return end, text, f"rank {end.failure.rank} failed"


def _following(job: Job, failures: int, *, had_gpus: int, started: int) -> Job | None:
    """Return the job to start after a failure: the same, one with fewer ranks, or None.

    Args:
        job: the job that failed.
        failures: number of failures at this number of ranks.
        had_gpus: GPUs that were visible at the start of the launch; each rank has one if there were enough.
        started: how many ranks were started.
    """
    if started < job.num_ranks:
        return _with_ranks(job, started)
    gpus = num_visible_gpus() if had_gpus >= job.num_ranks else job.num_ranks
    if gpus < job.num_ranks and (fewer := _with_ranks(job, gpus)) is not None:
        return fewer
    return job if failures <= job.max_restarts else _with_ranks(job, job.num_ranks - 1)


def _with_ranks(job: Job, num_ranks: int) -> Job | None:
    allowed = job.min_ranks is not None and num_ranks >= job.min_ranks
    return replace(job, num_ranks=num_ranks) if allowed else None
