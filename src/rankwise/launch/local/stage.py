"""What surrounds an attempt, for both supervisors (one machine, several machines).

The time limit, the folder of the logs, and how a text is printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.errors import LaunchError

if TYPE_CHECKING:
    from rankwise.launch.job import Job
    from rankwise.launch.local.console import Console

__all__ = ["next_logs", "tell", "with_time_left"]

_MAX_SECONDS = "RANKWISE_MAX_SECONDS"


def with_time_left(job: Job, begun_s: float) -> Job:
    """If the environment sets a time limit for the ranks, let it count from the start of the launch."""
    text = job.env.get(_MAX_SECONDS, os.environ.get(_MAX_SECONDS, ""))
    with contextlib.suppress(ValueError):
        left_s = max(1.0, float(text) - (time.monotonic() - begun_s))
        return replace(job, env={**job.env, _MAX_SECONDS: f"{left_s:g}"})
    return job


def tell(console: Console, text: str) -> None:
    """Print the first line of a text as a message, and the rest unchanged."""
    first, _, rest = text.partition("\n")
    console.say(first)
    if rest:
        console.block(rest)


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
