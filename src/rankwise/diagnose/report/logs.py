"""What the ranks printed, searched for the lines that rankwise says there: findings, hangs, skipped samples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LogFolder", "LogNotes", "read_logs"]

_END_BYTES = 1 << 20
_MOST = 100
_GUARD = re.compile(r"\[([a-z][\w -]*)\] ((?:after step \d+|before the first step), ranks? [\d, ]+, .+)")
_SKIPPED = re.compile(r"^.*\brank \d+ (?:leaves|left) out .*\bdamaged samples?\b.*$", re.MULTILINE)
_HANG = re.compile(r"^.*\branks? [\d, -]+ ha(?:s|ve) not joined .+$", re.MULTILINE)
_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Interrupted|Exit)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFolder:
    """The logs of one start of all ranks.

    Attributes:
        name: of the folder.
        last_s: when a rank last wrote there, in seconds since 1970.
        errors: (rank, line) of the last exception of each rank that died of one.
    """

    name: str
    last_s: float
    errors: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNotes:
    """What all logs tell, each thing once: (where, text)."""

    folders: list[LogFolder] = field(default_factory=list)
    guard: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    hangs: list[tuple[str, str]] = field(default_factory=list)


def read_logs(root: Path, notes: list[str]) -> LogNotes:
    """Read the first and the last megabyte of every log under a run's ``logs/``."""
    found = LogNotes()
    seen: set[str] = set()
    folders = [(int(name[1]), entry) for entry in root.glob("attempt-*") if (name := re.search(r"-(\d+)$", entry.name))]
    for _, folder in sorted(folders):
        errors, last_s = [], 0.0
        for file in sorted(folder.glob("rank-*.*")):
            where = f"{folder.name}/{file.name}"
            try:
                text, last_s = _ends(file), max(last_s, file.stat().st_mtime)
            except OSError as error:
                notes.append(f"logs/{where} cannot be read: {error}")
                continue
            _search(text, where, found, seen)
            if "Traceback (most recent call last)" in text and (lines := _ERROR.findall(text)):
                errors.append((file.stem, lines[-1]))
        found.folders.append(LogFolder(name=folder.name, last_s=last_s, errors=errors))
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
