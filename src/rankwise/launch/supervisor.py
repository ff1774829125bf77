"""The launch as a whole: attempts, restarts, and the last word."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from rankwise.errors import LaunchError
from rankwise.launch.attempt import Attempt
from rankwise.launch.console import Console
from rankwise.launch.janitor import Janitor
from rankwise.launch.job import Job
from rankwise.launch.loop import Loop
from rankwise.launch.outcome import Outcome, describe_failure, describe_others
from rankwise.launch.verdict import Failure, RankEnd

__all__ = ["supervise"]


def supervise(job: Job, *, loop: Loop | None = None, console: Console | None = None) -> Outcome:
    """Start the ranks, watch over them, start all of them again after a failure as often as the job allows.

    To be called in the main thread of a process without other threads. When it returns, no rank is left. If this
    process is killed, its ranks are killed too.

    Args:
        job: what to run.
        loop: an entered loop whose descriptors are served while the ranks run; None makes one.
        console: where the ranks' output and our messages go; None makes one.

    Raises:
        LaunchError: the ranks cannot be started (port in use, log folder not writable).
    """
    console = console or Console()
    janitor = Janitor()
    try:
        if loop is not None:
            return _attempts(job, loop, console, janitor)
        with Loop() as own:
            return _attempts(job, own, console, janitor)
    finally:
        janitor.dismiss()


def _attempts(job: Job, loop: Loop, console: Console, janitor: Janitor) -> Outcome:
    run_id = f"rankwise-{os.getpid()}-{secrets.token_hex(4)}"
    number = 0
    while True:
        logs = _next_logs(job.logs)
        attempt = Attempt(job, number, run_id, loop=loop, console=console, janitor=janitor, logs=logs)
        failure, ends = attempt.run()
        _tell_hidden(console, attempt.hidden_lines, logs)
        text = _tell_failure(console, failure, ends, logs) if failure is not None and not attempt.interrupted else ""
        last = number >= job.max_restarts
        if failure is None or attempt.interrupted is not None or last:
            return Outcome(failure=failure, interrupted=attempt.interrupted, num_attempts=number + 1, text=text)
        number += 1
        console.say(
            f"starting all ranks again, restart {number} of {job.max_restarts}, because rank {failure.rank} failed"
        )


def _tell_failure(console: Console, failure: Failure, ends: list[RankEnd], logs: Path | None) -> str:
    text = describe_failure(failure, len(ends), describe_others(ends, failure))
    if logs is not None:
        text += f"\nlogs: {logs}"
    console.say(text.partition("\n")[0])
    rest = text.partition("\n")[2]
    if rest:
        console.block(rest)
    return text


def _tell_hidden(console: Console, hidden: dict[int, int], logs: Path | None) -> None:
    lines = {rank: number for rank, number in hidden.items() if number}
    if lines and logs is None:
        ranks = ", ".join(map(str, sorted(lines)))
        console.say(f"not shown: {sum(lines.values())} lines on stdout of rank {ranks} (--tee all shows them)")


def _next_logs(root: Path | None) -> Path | None:
    """Make the next `attempt-<n>` folder; logs of earlier attempts and launches stay."""
    if root is None:
        return None
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(m[1]) for m in (re.fullmatch(r"attempt-(\d+)", entry.name) for entry in root.iterdir()) if m]
        folder = root / f"attempt-{max(taken, default=-1) + 1}"
        folder.mkdir()
    except OSError as error:
        raise LaunchError(
            f"cannot write logs to {root}: {error.strerror}; choose another --log-dir or --run-dir"
        ) from error
    return folder
