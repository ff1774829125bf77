"""Read a run from its directory, without writing; of damaged files, read as much as possible."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.diagnose.report.series import is_number
from rankwise.errors import ConfigError
from rankwise.tracking import read_metrics

_END_BYTES = 1 << 20
_MOST = 100
_GUARD = re.compile(r"\[([a-z][\w -]*)\] ((?:after step \d+|before the first step), ranks? [\d, ]+, .+)")
_SKIPPED = re.compile(  # messages of a rank, of a crop pipeline, of the whole training; also those of earlier versions
    r"^.*(?:\brank \d+ (?:skips|skipped|leaves out|left out) .*\bdamaged samples?\b"
    r"|\b(?:skipped|left out) \(\d+ of at most \d+\): "
    r"|\bsamples were damaged and left out of the training).*$",
    re.MULTILINE,
)
_HANG = re.compile(r"^.*\branks? [\d, -]+ ha(?:s|ve) not joined .+$", re.MULTILINE)
_MOST_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class LogNotes:
    """The messages of all logs, without duplicates: (where, text).

    Attributes:
        are_kept: whether there are logs.
    """

    are_kept: bool = False
    guard: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    hangs: list[tuple[str, str]] = field(default_factory=list)


def read_logs(root: Path, notes: list[str]) -> LogNotes:
    """Read the first and the last megabyte of every log under a run's ``logs/``, also those of several hosts."""
    found = LogNotes()
    seen: set[str] = set()
    folders = [
        (int(name[1]), entry)
        for pattern in ("attempt-*", "*/attempt-*")
        for entry in root.glob(pattern)
        if (name := re.search(r"-(\d+)$", entry.name))
    ]
    for _, folder in sorted(folders):
        found.are_kept = True
        for file in sorted(folder.glob("rank-*.*")):
            where = str(file.relative_to(root))
            if not file.is_file():  # reading a pipe would block
                continue
            try:
                text = _ends(file)
            except OSError as error:
                notes.append(f"logs/{where} cannot be read: {error}")
                continue
            _search(text, where, found, seen)
    return found


def _ends(file: Path) -> str:
    with file.open("rb") as opened:
        size = file.stat().st_size
        content = opened.read(_END_BYTES)
        if size > 2 * _END_BYTES:
            opened.seek(size - _END_BYTES)
        content += opened.read(_END_BYTES)
    return content.decode("utf-8", "replace")


def _search(text: str, where: str, found: LogNotes, seen: set[str]) -> None:
    for kind, pattern in ((found.guard, _GUARD), (found.skipped, _SKIPPED), (found.hangs, _HANG)):
        for match in pattern.finditer(text):
            line = match[0].strip()
            if line not in seen and len(kind) < _MOST:
                seen.add(line)
                kind.append((where, line))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of one run's files.

    Attributes:
        name: its name on the page.
        path: the directory.
        status: "finished", "running", "interrupted", "failed" or "ended" (cause unknown).
        config: ``config.json``.
        finished: ``finished.json``, empty without one.
        attempts: number and record of each attempt, in order.
        lines: the valid lines of metrics.
        starts: the step from which each attempt continued.
        num_superseded: number of invalid lines.
        checkpoints: manifests, by step, each with its size in bytes and its folder's name.
        profile, scaling: results of `rankwise profile` and `rankwise scaling`, empty without.
        lint, doctor: findings and checks, None if none were saved.
        stalls: reports of the watch.
        failures, standstills: the launcher's entries in ``failure.json``, oldest first.
        findings: for each attempt with findings: those of its guard, and the number of skipped samples so far.
        logs: messages of the ranks' logs.
        notes: what could not be read.
    """

    name: str
    path: Path
    status: str
    config: dict[str, Any]
    finished: dict[str, Any]
    attempts: list[tuple[int, dict[str, Any]]]
    lines: list[dict[str, Any]]
    starts: list[tuple[int, int]]
    num_superseded: int
    checkpoints: list[dict[str, Any]]
    profile: dict[str, Any]
    scaling: dict[str, Any]
    lint: list[dict[str, Any]] | None
    doctor: list[dict[str, Any]] | None
    stalls: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    standstills: list[dict[str, Any]]
    findings: list[tuple[int, dict[str, Any]]]
    logs: LogNotes
    notes: list[str]


def as_dict(value: object) -> dict[str, Any]:
    """Return a JSON object; for any other value an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list; for any other value an empty one."""
    return value if isinstance(value, list) else []


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Return a JSON list of objects; what is none becomes an empty one."""
    return [as_dict(one) for one in as_list(value)]


_OF_A_RUN = ("config.json", "metrics.jsonl", "failure.json", "profile.json", "scaling.json")


def read_run(
    path: Path, *, name: str, lint: list[dict[str, Any]] | None, doctor: list[dict[str, Any]] | None
) -> RunRecord:
    """Read a run directory.

    Args:
        path: the directory.
        name: the run's name.
        lint: findings to show instead of ``lint.json``.
        doctor: checks to show instead of ``doctor.json``.

    Raises:
        ConfigError: the directory does not exist, or holds no run.
    """
    _require_run(path)
    notes: list[str] = []
    config = as_dict(_load(path / "config.json", notes, wanted=True))
    finished = as_dict(_load(path / "finished.json", notes))
    attempts = _by_attempt(as_dict(config.get("environment")))
    ended = as_dict(_load(path / "failure.json", notes))
    failures = as_dicts(ended.get("failures"))
    lines, starts, num_superseded = _metrics(path, notes)
    stalls = [
        {"file": file.name, **as_dict(_load(file, notes))}
        for folder in (path, path / "logs")
        for file in sorted(folder.glob("rankwise-stall-*.json"))
    ]
    return RunRecord(
        name=name,
        path=path,
        status=_status(path, finished, attempts, failures),
        config=config,
        finished=finished,
        attempts=attempts,
        lines=lines,
        starts=starts,
        num_superseded=num_superseded,
        checkpoints=_checkpoints(path / "checkpoints", notes),
        profile=as_dict(_load(path / "profile.json", notes)),
        scaling=as_dict(_load(path / "scaling.json", notes)),
        lint=lint if lint is not None else _saved(path / "lint.json", "findings", notes),
        doctor=doctor if doctor is not None else _saved(path / "doctor.json", "checks", notes),
        stalls=stalls,
        failures=failures,
        standstills=as_dicts(ended.get("standstills")),
        findings=_by_attempt(as_dict(_load(path / "findings.json", notes))),
        logs=read_logs(path / "logs", notes),
        notes=notes,
    )


def _require_run(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(
            f"report needs a run directory, but {str(path)!r} is not a directory. Runs are in runs/ by default"
        )
    if not any((path / known).exists() for known in _OF_A_RUN):
        raise ConfigError(
            f"{str(path)!r} holds no run: none of {', '.join(_OF_A_RUN)}. "
            "Give the folder of one run, as --run-dir names it"
        )


def _by_attempt(records: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    found = [(int(number), as_dict(record)) for number, record in records.items() if number.isdecimal()]
    return sorted(found, key=lambda pair: pair[0])


def read_saved(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the JSON output of `rankwise lint` or `rankwise doctor` from a file.

    Raises:
        ConfigError: the file has other content.
    """
    notes: list[str] = []
    found = _saved(path, key, notes)
    if found is None:
        raise ConfigError(f"{path} should hold the JSON list of {key}; " + (notes[0] if notes else "there is no file"))
    return found


def _saved(path: Path, key: str, notes: list[str]) -> list[dict[str, Any]] | None:
    value = _load(path, notes)
    value = value.get(key) if isinstance(value, dict) else value
    if value is not None and not isinstance(value, list):
        notes.append(f"{path.name} holds no list of {key}")
    return as_dicts(value) if isinstance(value, list) else None


def _load(path: Path, notes: list[str], *, wanted: bool = False) -> Any:
    """Return the content of a JSON file; if it cannot be read, add a note and return None."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block
            notes.append(f"{path.name} is not a file")
            return None
        if path.stat().st_size > _MOST_BYTES:
            notes.append(f"{path.name} is larger than {_MOST_BYTES >> 20} MiB and was not read")
            return None
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        if wanted:
            notes.append(f"{path.name} is missing: the configuration of the run is unknown")
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
    return None


def _metrics(path: Path, notes: list[str]) -> tuple[list[dict[str, Any]], list[tuple[int, int]], int]:
    if (path / "metrics.jsonl").exists() and not (path / "metrics.jsonl").is_file():
        notes.append("metrics.jsonl is not a file")
        return [], [], 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            every = read_metrics(path, all=True)
        except (OSError, ValueError, TypeError) as error:
            notes.append(f"metrics.jsonl cannot be read: {error}")
            return [], [], 0
    notes += [str(one.message) for one in said[:5]]
    if len(said) > 5:
        notes.append(f"metrics.jsonl: {len(said) - 5} more lines were skipped")
    events = [line for line in every if line.get("event") == "attempt"]
    starts = [(line["attempt"], line["restored_step"] or 0) for line in events]
    lines = [line for line in every if not line["superseded"] and "event" not in line]
    return lines, starts, sum(line["superseded"] for line in every)


def _checkpoints(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    found = []
    for place in sorted(folder.glob("step-*")):
        record = as_dict(_load(place / "manifest.json", notes))
        if not isinstance(record.get("step"), int):
            notes.append(f"checkpoints/{place.name} has no readable manifest: it is damaged or being written")
            continue
        parts = map(as_dict, as_dict(record.get("parts")).values())
        sizes = [file.get("bytes") for part in parts for file in as_dicts(part.get("files"))]
        size = sum(size for size in sizes if is_number(size))
        found.append({**record, "folder": place.name, "size": size})
    return sorted(found, key=lambda record: record["step"])


def _status(
    path: Path, finished: dict[str, Any], attempts: Sequence[tuple[int, dict[str, Any]]], failures: list[dict[str, Any]]
) -> str:
    if finished:
        return "finished"
    if _is_held(path / "running.lock"):
        return "running"
    if attempts and "interrupted" in attempts[-1][1]:
        return "interrupted"
    begun = attempts[-1][1].get("time") if attempts else None
    last = max((when for one in failures if is_number(when := one.get("time"))), default=-math.inf)
    return "failed" if failures and (not is_number(begun) or last >= begun) else "ended"


def _is_held(lock: Path) -> bool:
    """Whether a process owns the run, so that its lock is held; the test does not take the lock."""
    try:
        found = lock.stat()
    except OSError:
        return False
    try:
        held = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux: use a metrics line of the last minute instead
        return time.time() - _touched(lock.parent / "metrics.jsonl") < 60
    return any(line.split()[5].rpartition(":")[2] == str(found.st_ino) for line in held if len(line.split()) > 5)


def _touched(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
