"""Kill everything that a rank has started: each rank leads a session and a process group of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

__all__ = ["kill_group", "kill_sessions", "process_state"]

_PROC = Path("/proc")


def kill_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to the process group of a rank; nothing happens if it is empty."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_sessions(leaders: Collection[int]) -> None:
    """Kill every process of these sessions, also those that have moved to another group (Linux)."""
    for leader in leaders:
        kill_group(leader)
    if not leaders or not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and _session(entry) in leaders:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)


def process_state(pid: int) -> str:
    """Return the state letter of a process ("R", "S", "T" for stopped, ...), "" if it cannot be known."""
    fields = _stat(_PROC / str(pid))
    return fields[0] if fields else ""


def _session(entry: Path) -> int:
    fields = _stat(entry)
    return int(fields[3]) if fields else -1


def _stat(entry: Path) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name: state, parent, group, session, ..."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
