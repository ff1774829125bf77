"""Claim a run directory: the main rank's part of `RunDir.open`."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise._process.lock import FileLock
from rankwise._version import __version__
from rankwise.data.contract import JSON
from rankwise.errors import RunDirError
from rankwise.tracking.config import describe_differences, masked
from rankwise.tracking.files import read_json, write_json

# Entries allowed in a directory without a run: created by the launcher, or left by a killed start.
_EARLY = {
    "logs",
    "vitals",
    "lock",
    "running.lock",
    "attempt.json",
    "traces",
    "profile.json",
    "scaling.json",
    "failure.json",
}
_FORMAT = 1
_LOGS = re.compile(r"attempt-(\d+)")
# How to keep an existing run unchanged; for messages.
WAYS = (
    "start over with --fresh, Trainer(fresh=True) or RANKWISE_FRESH=1 (the old run is moved aside, never deleted), or "
    "use another directory with --run-dir or run="
)
# Ids of runs that this process has finished.
FINISHED_HERE: set[str] = set()
_log = logging.getLogger("rankwise.tracking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The result of a claim.

    Attributes:
        run_id: unique id of the run, different from earlier runs at the same path.
        attempt: number of this attempt.
        resumed: whether there was an earlier attempt.
        finished: the record of a finished run, else None.
        changed: allowed changes, ``key: old -> new``.
        saved: whether an earlier attempt has published a checkpoint.
    """

    run_id: str
    attempt: int
    resumed: bool
    finished: dict[str, Any] | None
    changed: tuple[str, ...] = ()
    saved: bool = False


def claim(
    path: Path,
    running: FileLock,
    *,
    config: dict[str, JSON],
    environment: dict[str, JSON],
    may_change: Collection[str],
    resume: str,
    fresh: bool,
    reopen: bool,
    wait_s: float,
) -> Claim:
    """Claim the run in `path` and hold `running`; hold nothing if it is finished, or after an error.

    Arguments as in `RunDir.open`.

    Raises:
        RunDirError: the run cannot be claimed.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_foreign(path)
    running.acquire(wait_s=wait_s)
    with contextlib.ExitStack() as unless_ours:
        unless_ours.callback(running.release)
        if fresh and (path / "config.json").exists():
            aside = _move_aside(path, running)
            path.mkdir(mode=stat.S_IMODE(aside.stat().st_mode), exist_ok=True)
            running.acquire(wait_s=wait_s)
            _keep_live_logs(path, aside)
        record = read_json(path / "config.json")
        resumed, changed = record is not None, tuple[str, ...]()
        if record is None:
            if resume == "must":
                raise RunDirError(
                    f"resume='must' needs a run in {path}, but there is none; check the path, or use resume='auto'"
                )
            record = {"format": _FORMAT, "run": uuid.uuid4().hex, "rankwise": __version__, "created": time.time()}
            record |= {"config": config, "environment": {}}
        else:
            changed = _check(path, record, config, may_change=may_change, resume=resume)
            finished = _read_finished(path)
            if finished is not None and not reopen:
                if record["run"] in FINISHED_HERE:
                    raise RunDirError(
                        f"{path} was finished by this same process, so it is not returned as the result of another "
                        f"training: name each run (Trainer(run='runs/fold-2')), write nothing with run=False, or {WAYS}"
                    )
                return Claim(
                    run_id=record["run"], attempt=finished["attempt"], resumed=True, finished=finished, changed=changed
                )
        record["config"] = config
        if changed:
            environment = {**environment, "changed": list(changed)}
        found = _own(path, record, environment, resumed=resumed, reopen=reopen, changed=changed)
        unless_ours.pop_all()
        return found


def _read_finished(path: Path) -> dict[str, Any] | None:
    file = path / "finished.json"
    mend = "move it away to continue from the newest checkpoint and finish again"
    finished = read_json(file, mend=mend)
    if finished is None:
        return None
    if not isinstance(finished.get("attempt"), int) or not isinstance(finished.get("values"), dict):
        raise RunDirError(f"{file} must hold the final record of a run (attempt, values), but does not; {mend}")
    return finished


def _check(
    path: Path, record: Mapping[str, Any], config: dict[str, JSON], *, may_change: Collection[str], resume: str
) -> tuple[str, ...]:
    if record.get("format") != _FORMAT:
        raise RunDirError(
            f"{path} has run format {record.get('format')}; this rankwise reads format {_FORMAT}: resume it with "
            f"rankwise {record.get('rankwise')}, or start another run with --run-dir"
        )
    if resume == "never":
        raise RunDirError(f"resume='never' needs {path} without a run, but it holds one; let it resume, or {WAYS}")
    # an old record may contain secrets that are masked today
    differences, changed = describe_differences(masked(record["config"]), config, may_change=may_change)
    if differences:
        lines = "\n".join(f"  {line}" for line in differences)
        raise RunDirError(
            f"{path} holds a run with another configuration, so it was not resumed (recorded -> now):\n{lines}\n"
            f"Go back to the recorded values to resume it, or {WAYS}."
        )
    return tuple(changed)


def _own(
    path: Path,
    record: dict[str, Any],
    environment: dict[str, JSON],
    *,
    resumed: bool,
    reopen: bool,
    changed: tuple[str, ...],
) -> Claim:
    """Increase the attempt number under the short lock: from then on, older attempts are fenced out."""
    short = FileLock(path / "lock", what=f"the lock of {path}")
    short.acquire(wait_s=60.0)
    try:
        before = read_json(path / "attempt.json", mend="move it away: config.json also counts the attempts") or {}
        before = before if before.get("run") == record["run"] else {}
        saved = before.get("saved") is True
        attempts = map(int, (before.get("attempt") or 0, *record["environment"]))  # both, in case one file was lost
        attempt = 1 + max(attempts)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        if reopen:  # if killed after this, the run counts as unfinished
            with contextlib.suppress(FileNotFoundError):
                (path / "finished.json").rename(path / f"finished-{attempt - 1}.json")
        write_json(path / "attempt.json", {"run": record["run"], "attempt": attempt, "saved": saved, **owner})
        record["environment"][str(attempt)] = {**environment, "rankwise": __version__, **owner}
        write_json(path / "config.json", record)
    finally:
        short.release()
    return Claim(run_id=record["run"], attempt=attempt, resumed=resumed, finished=None, changed=changed, saved=saved)


def _refuse_foreign(path: Path) -> None:
    if (path / "config.json").exists():
        record = read_json(path / "config.json") or {}
        made_of, attempts = record.get("config"), record.get("environment")
        whole = "run" in record and isinstance(made_of, dict) and isinstance(attempts, dict)
        if whole and all(number.isdecimal() for number in attempts or ()):
            return
        raise RunDirError(f"{path / 'config.json'} is not the config of a run; choose another directory with --run-dir")
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in _EARLY and not _is_ours(entry.name))
    if "config.json" in foreign:  # another process has created the run since the check
        _refuse_foreign(path)
    elif foreign:
        shown = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise RunDirError(
            f"{path} holds no run (no config.json) but other files: {shown}; choose an empty or new directory with "
            "--run-dir, or move the files away"
        )


def _is_ours(name: str) -> bool:
    """Whether it is a temporary file of a killed `write_json`, or a failure file that was renamed."""
    return re.fullmatch(r"failure\.json\.[\d-]+|\.(attempt|config|failure)\.json\.[0-9a-f]+\.tmp", name) is not None


def _move_aside(path: Path, running: FileLock) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    path.rename(aside)
    running.release()
    _log.warning("--fresh: the earlier run was moved to %s", aside)
    return aside


def _keep_live_logs(path: Path, aside: Path) -> None:
    """Move the newest log folder back: the launcher of this attempt is writing into it."""
    if Path(os.environ.get("RANKWISE_RUN_DIR", "/")).absolute() != path:
        return
    numbered = [(int(name[1]), entry) for entry in aside.glob("logs/*") if (name := _LOGS.fullmatch(entry.name))]
    if numbered:
        (path / "logs").mkdir(exist_ok=True)
        live = max(numbered)[1]
        live.rename(path / "logs" / live.name)
