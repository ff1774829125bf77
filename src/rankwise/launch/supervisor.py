"""The launch as a whole: attempts, restarts, and the last word."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import nullcontext
from pathlib import Path

from rankwise.errors import LaunchError
from rankwise.launch.attempt import Attempt
from rankwise.launch.console import Console
from rankwise.launch.job import Job
from rankwise.launch.loop import Loop
from rankwise.launch.outcome import Outcome, describe_failure, describe_others
from rankwise.launch.verdict import Failure, RankEnd

__all__ = ["supervise"]


def supervise(
    job: Job,
    *,
    loop: Loop | None = None,
    console: Console | None = None,
    tell_last: bool = True,
) -> Outcome:
    """Start the ranks, watch over them, start all of them again after a failure as often as the job allows.

    To be called in the main thread of a process without other threads. When it returns, no rank is left. If this
    process is killed, its ranks are killed too.

    Args:
        job: what to run.
        loop: an entered loop whose descriptors are served while the ranks run; None makes one.
        console: where the ranks' output and our messages go; None makes one.
        tell_last: print the failure that ends the launch; it stands in `Outcome.text` in any case.

    Raises:
        LaunchError: the ranks cannot be started (port in use, log folder not writable).
    """
    console = console or Console()
    with nullcontext(loop) if loop is not None else Loop() as entered:
        outcome = _attempts(job, entered, console)
    if tell_last and outcome.text:
        _tell(console, outcome.text)
    console.flush()
    return outcome


def _attempts(job: Job, loop: Loop, console: Console) -> Outcome:
    run_id = f"rankwise-{os.getpid()}-{secrets.token_hex(4)}"
    number = 0
    while True:
        logs = _next_logs(job.logs, job.run_dir)
        attempt = Attempt(job, number, run_id, loop=loop, console=console, logs=logs)
        failure, ends = attempt.run()
        _tell_hidden(console, attempt.hidden_lines, logs)
        text = _describe(failure, ends, logs) if failure is not None else ""
        if failure is None or attempt.interrupted is not None or number >= job.max_restarts:
            return Outcome(failure=failure, interrupted=attempt.interrupted, num_attempts=number + 1, text=text)
        number += 1
        _tell(console, text)
        console.say(
            f"starting all ranks again, restart {number} of {job.max_restarts}, because rank {failure.rank} failed"
        )


def _describe(failure: Failure, ends: list[RankEnd], logs: Path | None) -> str:
    text = describe_failure(failure, len(ends), describe_others(ends, failure))
    return text if logs is None else f"{text}\nlogs: {logs}"


def _tell(console: Console, text: str) -> None:
    first, _, rest = text.partition("\n")
    console.say(first)
    if rest:
        console.block(rest)


def _tell_hidden(console: Console, hidden: dict[int, int], logs: Path | None) -> None:
    lines = {rank: number for rank, number in hidden.items() if number}
    if lines and logs is None:
        ranks = ", ".join(map(str, sorted(lines)))
        console.say(f"not shown: {sum(lines.values())} lines on stdout of rank {ranks} (--tee all shows them)")


def _next_logs(root: Path | None, run_dir: Path | None) -> Path | None:
    """Make the next `attempt-<n>` folder; logs of earlier attempts and launches stay."""
    if root is None:
        return None
    try:
        if run_dir is not None:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # as the ranks would make it: for its owner alone
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(m[1]) for m in (re.fullmatch(r"attempt-(\d+)", entry.name) for entry in root.iterdir()) if m]
        folder = root / f"attempt-{max(taken, default=-1) + 1}"
        folder.mkdir()
    except OSError as error:
        raise LaunchError(
            f"cannot write logs to {root}: {error.strerror}; choose another --log-dir or --run-dir"
        ) from error
    return folder
