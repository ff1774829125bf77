"""What surrounds an attempt, for both supervisors (one machine, several machines).

The stage that a launch shares with its caller, the logs, the time limit, and what is printed at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import LaunchError

if TYPE_CHECKING:
    from rankwise.launch.failures.verdict import Failure, RankEnd
    from rankwise.launch.job import Job
    from rankwise.launch.local.console import Console
    from rankwise.launch.local.forks.spare import Spare
    from rankwise.launch.local.loop import Loop

__all__ = ["ALONE", "Stage", "describe_end", "next_logs", "tell", "tell_hidden", "with_time_left"]

_MAX_SECONDS = "RANKWISE_MAX_SECONDS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a launch shares with its caller; the launch creates what is None.

    Attributes:
        loop: an entered loop whose descriptors are served while the ranks run; None creates one.
        console: where the ranks' output and our messages go; None makes one.
        tell_last: print the failure that ends the launch; it stands in `Outcome.text` in any case.
        spare: a process that may become the fork server of the first attempt; the caller closes it.
    """

    loop: Loop | None = None
    console: Console | None = None
    tell_last: bool = True
    spare: Spare | None = None


ALONE = Stage()


def with_time_left(job: Job, begun_s: float) -> Job:
    """If the environment sets a time limit for the ranks, let it count from the start of the launch."""
    text = job.env.get(_MAX_SECONDS, os.environ.get(_MAX_SECONDS, ""))
    with contextlib.suppress(ValueError):
        left_s = max(1.0, float(text) - (time.monotonic() - begun_s))
        return replace(job, env={**job.env, _MAX_SECONDS: f"{left_s:g}"})
    return job


def describe_end(failure: Failure, ends: list[RankEnd], logs: Path | None, *, world_size: int | None = None) -> str:
    """Return the text of a failure: root cause, one line for each other rank of this machine, and the log folder."""
    from rankwise.launch.failures.outcome import describe_failure, describe_others

    text = describe_failure(failure, len(ends) if world_size is None else world_size, describe_others(ends, failure))
    return text if logs is None else f"{text}\nlogs: {logs}"


def tell(console: Console, text: str) -> None:
    """Print the first line of a text as a message, and the rest unchanged."""
    first, _, rest = text.partition("\n")
    console.say(first)
    if rest:
        console.block(rest)


def tell_hidden(console: Console, hidden: dict[int, int], logs: Path | None) -> None:
    """Print how many lines the console did not show, if no log file has them."""
    lines = {rank: number for rank, number in hidden.items() if number}
    if lines and logs is None:
        ranks = ", ".join(map(str, sorted(lines)))
        console.say(f"not shown: {sum(lines.values())} lines on stdout of rank {ranks} (--tee all shows them)")


def next_logs(root: Path | None, run_dir: Path | None) -> Path | None:
    """Create the next `attempt-<n>` folder; logs of earlier attempts and launches stay."""
    if root is None:
        return None
    try:
        if run_dir is not None:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # with the mode that the ranks would use: owner only
        root.mkdir(parents=True, exist_ok=True)
        while True:
            taken = [int(m[1]) for m in (re.fullmatch(r"attempt-(\d+)", entry.name) for entry in root.iterdir()) if m]
            folder = root / f"attempt-{max(taken, default=-1) + 1}"
            with contextlib.suppress(FileExistsError):  # another node with the same name made it meanwhile
                folder.mkdir(mode=0o700)
                return folder
    except OSError as error:
        raise LaunchError(
            f"cannot write logs to {root}: {error.strerror}; choose another --log-dir or --run-dir"
        ) from error
