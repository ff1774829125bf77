"""Kill every process that a rank has started: each rank leads its own session and process group."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

_PROC = Path("/proc")
# these processes remove semaphores and shared memory of killed processes, and then end by themselves
_TIDY = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
GUARD = b"rankwise: guard of a rank"  # the guard's command line; the guard is forked and never calls exec
_TIDY_S = 20.0  # time for these to start and finish on a busy machine
_POLL_S = 0.02
_FORKED_ONLY = 0x40  # the kernel's PF_FORKNOEXEC: the process has not called exec
_YOUNG_S = 1.0  # the longest time from fork to exec on a busy machine


def end_session(leader: int) -> None:
    """Kill every process of a rank's session, in all process groups, except those that clean up after it.

    On systems other than Linux: of its process group. The calling process is skipped.
    """
    if not _PROC.is_dir():
        _send(-leader, signal.SIGKILL)
        return
    for _ in range(3):  # a process may have started another one during the scan
        found = [pid for pid in _members({leader}) if pid != os.getpid() and (pid == leader or not _is_spared(pid))]
        for pid in found:
            _send(pid, signal.SIGKILL)
        if not found:
            return


def end_sessions(leaders: Collection[int]) -> None:
    """Kill what is left of these sessions; give the cleanup processes some time first."""
    for leader in leaders:
        end_session(leader)
    if not leaders or not _PROC.is_dir():
        return
    deadline = time.monotonic() + _TIDY_S
    while any(_is_spared(pid) for pid in _members(leaders) if pid != os.getpid()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for pid in _members(leaders):
        if pid != os.getpid():
            _send(pid, signal.SIGKILL)


def process_state(pid: int) -> str:
    """Return the state letter of a process ("R", "S", "T" for stopped, ...), "" if unknown."""
    fields = _stat(_PROC / str(pid))
    return fields[0] if fields else ""


def parent_process(pid: int) -> int:
    """Return the parent of a process, 0 if unknown."""
    fields = _stat(_PROC / str(pid))
    return int(fields[1]) if fields else 0


def _members(leaders: Collection[int]) -> Iterator[int]:
    """Yield the processes of these sessions that have not ended."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            fields = _stat(entry)
            if fields and int(fields[3]) in leaders and fields[0] not in {"Z", "X"}:
                yield int(entry.name)


def _is_spared(pid: int) -> bool:
    """Whether a process cleans up, or was forked just now and may become one that does."""
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    if any(word in command for word in _TIDY):
        return True
    fields = _stat(_PROC / str(pid))
    if not fields:
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    if not command:  # during exec: after vfork the parent may continue before the command line is set
        return age_s < _TIDY_S
    return bool(int(fields[6]) & _FORKED_ONLY) and age_s < _YOUNG_S and not command.startswith(GUARD)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _stat(entry: Path) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name: state, parent, group, session, ..."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
