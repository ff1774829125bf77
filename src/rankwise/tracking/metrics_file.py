"""The metrics file: one JSON object per line, append-only; the reader computes which lines are valid."""

from __future__ import annotations

import errno
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.tracking.files import mode_in

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
RESERVED = ("step", "attempt", "time", "event", "nonfinite", "superseded", "restored_step")


def read_metrics(path: str | Path, *, all: bool = False) -> list[dict[str, Any]]:  # noqa: A002
    """Return the valid lines, in the order in which they were written.

    When an attempt resumes at step s, lines of earlier attempts past s become invalid, and so do lines that a process
    of an earlier attempt writes afterwards. Non-finite numbers are returned as floats.

    Args:
        path: the metrics file, or its run directory.
        all: return every line, including events ("attempt"), each with a bool ``"superseded"``.

    Returns:
        ``[{"step", "epoch", "attempt", "time", **values}, ...]``; empty if there is no file yet. An incomplete last
        line, left by a kill, is skipped.
    """
    file = Path(path)
    file = file / "metrics.jsonl" if file.is_dir() else file
    lines = _parse(file)
    superseded = _superseded(lines)
    if all:
        return [{**line, "superseded": flag} for line, flag in zip(lines, superseded, strict=True)]
    return [line for line, flag in zip(lines, superseded, strict=True) if not flag and "event" not in line]


def encode_line(record: Mapping[str, Any], values: Mapping[str, float]) -> bytes:
    """Return one line. A non-finite value is written as null, with its name and kind under ``"nonfinite"``.

    JSON has no NaN: a bare NaN would break every strict parser, and a string would change the type.
    """
    try:
        text = _ENCODER.encode({**record, **values})
    except ValueError:  # the encoder refuses them
        odd = {name: str(value) for name, value in values.items() if not math.isfinite(value)}
        known = {name: None if name in odd else value for name, value in values.items()}
        text = _ENCODER.encode({**record, **known, "nonfinite": odd})
    return text.encode(errors="backslashreplace") + b"\n"  # as `write_json`


def open_lines(path: Path) -> int:
    """Return a descriptor for `append_line`; the caller closes it."""
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode_in(path.parent))


def is_file_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`: it may have been removed, renamed or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def read_lines(fd: int) -> bytes:
    """Return the whole content of an open file, which need not have a name any more."""
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def append_line(fd: int, line: bytes) -> None:
    """Append a line in one write, so that lines of other processes cannot split it."""
    written = os.write(fd, line)
    if written != len(line):  # a torn line would spoil the next one
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        what = f"only {written} of {len(line)} bytes of a line of metrics could be written: the disk is full"
        raise OSError(errno.ENOSPC, what)


def repair_tail(path: Path) -> None:
    """Remove an incomplete last line, whose writer was killed during the write."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep, block = end, b""
        while keep and not block:
            begin = max(0, keep - 65536)
            file.seek(begin)
            block = file.read(keep - begin)
            keep, block = (begin + block.rindex(b"\n") + 1, block) if b"\n" in block else (begin, b"")
        if keep != end:
            file.truncate(keep)


def _parse(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    lines = []
    rows = file.read_bytes().split(b"\n")
    for number, row in enumerate(rows[:-1], start=1):  # text after the last newline is incomplete or empty
        try:
            line = json.loads(row)
            odd = line.pop("nonfinite", {})
            line.update({name: float(kind) for name, kind in odd.items()})
            _check_line(line)
            lines.append(line)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            warnings.warn(f"{file}, line {number} is not valid metrics and was skipped", stacklevel=3)
    return lines


def _check_line(line: dict[str, Any]) -> None:
    """Raise if a line lacks the fields that decide its validity, as another program wrote it."""
    numbers = [line["attempt"], line["restored_step"] if line.get("event") == "attempt" else line.get("step")]
    if not isinstance(numbers[0], int) or not isinstance(numbers[1], int | None):
        raise TypeError(f"attempt and step must be integers, got {numbers}")
    if "event" not in line and numbers[1] is None:
        raise KeyError("step")


def _superseded(lines: list[dict[str, Any]]) -> list[bool]:
    """Return for each line whether a later attempt has invalidated it."""
    starts = [
        (int(line["attempt"]), -1 if line.get("restored_step") is None else int(line["restored_step"]), index)
        for index, line in enumerate(lines)
        if line.get("event") == "attempt"
    ]
    starts.sort(reverse=True)
    limits: dict[int, tuple[float, float]] = {}
    for attempt in {int(line["attempt"]) for line in lines}:
        later = [start for start in starts if start[0] > attempt]
        limits[attempt] = (
            min((start[1] for start in later), default=math.inf),
            min((start[2] for start in later), default=math.inf),
        )
    flags = []
    for index, line in enumerate(lines):
        last_step, last_index = limits[int(line["attempt"])]
        step = -1 if line.get("step") is None else line["step"]  # an event need not have one
        flags.append(line.get("event") != "attempt" and (step > last_step or index > last_index))
    return flags
