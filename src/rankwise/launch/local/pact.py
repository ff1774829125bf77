"""The rank's tie to the supervisor: if the supervisor ends in any way, the rank and its children end too."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.launch.local.sessions import GUARD, end_session, end_sessions

__all__ = ["die_with_parent", "keep_guard"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Make this process end as soon as its parent ends.

    On Linux the kernel sends SIGKILL. Call this in the main thread: the kernel ties the request to a thread. On other
    systems the guard does it. Exits at once if the parent is already gone.

    Args:
        parent: process id of the supervisor; this process must be its direct child.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def keep_guard(report_fd: int, folders: Sequence[Path]) -> None:
    """Start a guard process that ends the rank's session, and removes folders, once the supervisor is gone.

    A killed rank cannot end the processes that it started (loader workers, subprocesses). The guard is not a child of
    the rank, so a program that waits for its children does not see it. It is in the rank's session, so the supervisor
    ends it with that. It has another command line than the script, so `pkill` by the script's name does not kill it.

    Args:
        report_fd: pipe whose read end only the supervisor holds.
        folders: folders to remove.
    """
    rank = os.getpid()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        _rename()  # before the guard exists and the rank goes on: the guard never has the script's name
        if os.fork() == 0:
            _stand_guard(rank, report_fd, folders)
    finally:
        os._exit(0)


def _stand_guard(rank: int, report_fd: int, folders: Sequence[Path]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)  # keep no terminal or pipe open
    os.closerange(3, report_fd)
    os.closerange(report_fd + 1, 4096)
    gone = select.poll()
    gone.register(report_fd, 0)
    gone.poll()  # returns on an error only: the read end is closed
    if sys.platform == "linux":
        end_sessions({rank})
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    end_session(rank)


def _rename() -> None:
    """Overwrite this process's command line, as shown in /proc."""
    if sys.platform == "linux":
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, GUARD, min(len(GUARD), end - start - 1))
