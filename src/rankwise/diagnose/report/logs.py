"""Search the ranks' logs for rankwise's own messages: findings, hangs, skipped samples."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

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
