"""Taking a run directory: what the main rank does inside `RunDir.open`."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise._version import __version__
from rankwise.data.contract import JSON
from rankwise.errors import RunDirError
from rankwise.tracking.config import describe_differences
from rankwise.tracking.files import read_json, write_json
from rankwise.tracking.lock import FileLock

__all__ = ["Claim", "claim"]

# What may lie in a directory that holds no run yet: made by the launcher, or left by a start that died.
_EARLY = {"logs", "vitals", "lock", "running.lock", "attempt.json"}
_FORMAT = 1
_LOGS = re.compile(r"attempt-(\d+)")
_log = logging.getLogger("rankwise.tracking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What was found and taken.

    Attributes:
        run_id: tells this run from one that lay at the same path before.
        attempt: number of this attempt.
        resumed: an earlier attempt was here.
        finished: the record of a finished run, else None.
    """

    run_id: str
    attempt: int
    resumed: bool
    finished: dict[str, Any] | None


def claim(
    path: Path,
    running: FileLock,
    *,
    config: dict[str, JSON],
    environment: dict[str, JSON],
    resume: str,
    fresh: bool,
    wait_s: float,
) -> Claim:
    """Take the run in `path` and hold `running`, or refuse and hold nothing. Arguments as in `RunDir.open`.

    Raises:
        RunDirError: the run cannot be taken.
    """
    path.mkdir(parents=True, exist_ok=True)
    _refuse_foreign(path)
    running.acquire(wait_s=wait_s)
    try:
        if fresh and (path / "config.json").exists():
            aside = _move_aside(path, running)
            path.mkdir(exist_ok=True)
            running.acquire(wait_s=wait_s)
            _keep_live_logs(path, aside)
        found = _take(path, config, environment, resume)
    except BaseException:
        running.release()
        raise
    if found.finished is not None:
        running.release()
    return found


def _take(path: Path, config: dict[str, JSON], environment: dict[str, JSON], resume: str) -> Claim:
    record = read_json(path / "config.json")
    if record is None:
        if resume == "must":
            raise RunDirError(
                f"resume='must' wants a run in {path}, which holds none; check the path, or leave resume at 'auto'"
            )
        record = {"format": _FORMAT, "run": uuid.uuid4().hex, "rankwise": __version__, "created": time.time()}
        record |= {"config": config, "environment": {}}
        return _own(path, record, environment, resumed=False)
    _check(path, record, config, resume)
    finished = read_json(path / "finished.json")
    if finished is not None:
        return Claim(run_id=record["run"], attempt=int(finished["attempt"]), resumed=True, finished=finished)
    return _own(path, record, environment, resumed=True)


def _check(path: Path, record: Mapping[str, Any], config: dict[str, JSON], resume: str) -> None:
    if record.get("format") != _FORMAT:
        raise RunDirError(
            f"{path} is a run of format {record.get('format')}; this rankwise reads format {_FORMAT}: resume it with "
            f"rankwise {record.get('rankwise')}, or start another run with --run-dir"
        )
    ways = "or give --fresh to start anew (the old run is moved aside, never deleted), or --run-dir for another place"
    if resume == "never":
        raise RunDirError(f"resume='never' wants no run in {path}, which holds one; let it resume, {ways}")
    differences = describe_differences(record["config"], config)
    if differences:
        lines = "\n".join(f"  {line}" for line in differences)
        raise RunDirError(
            f"{path} holds a run with another configuration, so it was not resumed (recorded -> now):\n{lines}\n"
            f"Go back to the recorded values to resume it, {ways}."
        )


def _own(path: Path, record: dict[str, Any], environment: dict[str, JSON], *, resumed: bool) -> Claim:
    """Raise the attempt number under the short lock: from here on, older attempts are fenced out."""
    short = FileLock(path / "lock", what=f"the lock of {path}")
    short.acquire(wait_s=60.0)
    try:
        before = read_json(path / "attempt.json") or {}
        last = int(before["attempt"]) if before.get("run") == record["run"] else 0
        attempt = 1 + max([last, *map(int, record["environment"])])  # both, in case one file was lost
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        write_json(path / "attempt.json", {"run": record["run"], "attempt": attempt, **owner})
        record["environment"][str(attempt)] = {**environment, "rankwise": __version__, **owner}
        write_json(path / "config.json", record)
    finally:
        short.release()
    return Claim(run_id=record["run"], attempt=attempt, resumed=resumed, finished=None)


def _refuse_foreign(path: Path) -> None:
    if (path / "config.json").exists():
        record = read_json(path / "config.json") or {}
        if "run" in record and "config" in record:
            return
        raise RunDirError(f"{path / 'config.json'} is not a run's; choose another directory with --run-dir")
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _EARLY and not _is_ours(entry.name))
    if foreign:
        shown = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise RunDirError(
            f"{path} holds no run (no config.json) but other files: {shown}; choose an empty or new directory with "
            "--run-dir, or move these away"
        )


def _is_ours(name: str) -> bool:
    """Whether it is a temporary file of `write_json` whose writer died."""
    return re.fullmatch(r"\.(attempt|config)\.json\.[0-9a-f]+\.tmp", name) is not None


def _move_aside(path: Path, running: FileLock) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(aside)
    running.release()
    _log.warning("--fresh: the earlier run was moved to %s", aside)
    return aside


def _keep_live_logs(path: Path, aside: Path) -> None:
    """Take the newest log folder along: the launcher of this very start is writing into it."""
    if Path(os.environ.get("RANKWISE_RUN_DIR", "/")).absolute() != path:
        return
    numbered = [(int(name[1]), entry) for entry in aside.glob("logs/*") if (name := _LOGS.fullmatch(entry.name))]
    if numbered:
        (path / "logs").mkdir(exist_ok=True)
        live = max(numbered)[1]
        live.rename(path / "logs" / live.name)
